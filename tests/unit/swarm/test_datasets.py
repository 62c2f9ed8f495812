"""reasoning_gym is loaded without the plots of a library that it uses, which leaves the real one to others."""

from __future__ import annotations

import subprocess
import sys


def test_a_worker_loads_no_matplotlib_steps_the_game_of_life_and_hides_it_from_nobody() -> None:
    code = (
        "import sys\n"
        "from sapo_swarm.tasks.questions import generate_entry\n"
        "from sapo_swarm.tasks.catalogue import CATALOGUE, train_seed\n"
        "from sapo_swarm.types import TaskRef\n"
        "assert not [name for name in sys.modules if name.startswith(('matplotlib', 'mpl_toolkits', 'PIL'))]\n"
        "for slot in range(3):\n"
        "    ref = TaskRef('game_of_life', 'default', train_seed('n', 's', 1, slot))\n"
        "    dataset, entry = generate_entry(ref)\n"
        "    assert dataset.score_answer(entry['answer'], entry) == 1.0\n"
        "import matplotlib.pyplot\n"
        "assert matplotlib.pyplot.figure\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
