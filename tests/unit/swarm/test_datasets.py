"""reasoning_gym is loaded without the plots of a library that it uses, which leaves the real one to others, and without a
library that only one dataset uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


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


def test_without_pycosat_every_task_works_but_the_one_that_needs_it() -> None:
    """It has to be compiled, and many machines have no compiler."""
    code = (
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "found = PathFinder.find_spec\n"
        "PathFinder.find_spec = lambda name, *rest: None if name == 'pycosat' else found(name, *rest)\n"
        "from sapo_swarm.tasks.questions import NoSuchQuestion, generate_entry\n"
        "from sapo_swarm.tasks.catalogue import train_seed\n"
        "from sapo_swarm.types import TaskRef\n"
        "seed = train_seed('n', 's', 1, 0)\n"
        "dataset, entry = generate_entry(TaskRef('knights_knaves', 'default', seed))\n"
        "assert dataset.score_answer(entry['answer'], entry) == 1.0\n"
        "try:\n"
        "    generate_entry(TaskRef('zebra_puzzles', 'default', seed))\n"
        "except NoSuchQuestion as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "pycosat is not installed" in done.stdout


def test_a_wheel_without_code_satisfies_the_locked_version_of_pycosat(tmp_path: Path) -> None:
    write = [sys.executable, "packaging/no_compiler.py", str(tmp_path)]
    wheel = Path(subprocess.run(write, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip())
    lines = (ROOT / "packaging" / "requirements.lock").read_text("utf-8").splitlines()
    locked = next(line.rstrip(" \\") for line in lines if line.startswith("pycosat"))
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--find-links", str(tmp_path)]
    subprocess.run([*pip, "--target", str(target), locked], check=True)
    assert [path.name for path in target.iterdir()] == [f"{wheel.name.removesuffix('-py3-none-any.whl')}.dist-info"]
