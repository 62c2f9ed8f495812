"""Examples first, then practice: the trial of a base, the phase, its end, and what an interruption leaves of it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support import node_process
from tests.support.model_folder import on_disk, weights
from tests.support.node_process import node, reaches, sapo
from tests.support.own_tasks import library_in, write_folder
from tests.support.watched_node import CONFIG, follow, make

from sapo_backends.base import LoadRequest
from sapo_backends.fake import FakeEngine
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Evaluated, Event, ExamplesRead, LogLine, RoundFinished, StateChanged, TrialMeasured
from sapo_swarm.node import going_back
from sapo_swarm.node.journal import read_only
from sapo_swarm.node.verified_examples import ExampleSource
from sapo_swarm.scoring.scorer import Scorer

UNTAUGHT = msgspec.structs.replace(CONFIG, model="untaught", tasks=("moods",), rounds=3)


@pytest.fixture(autouse=True)
def _tasks(tmp_path: Path) -> Iterator[None]:
    """A table with two answers, of which the fake engine's table learns the more frequent one: it never begins right."""
    rows = [{"question": f"Judge letter {n}.", "answer": "No" if n % 5 else "Yes"} for n in range(100)]
    write_folder(tmp_path / "tasks" / "moods", '[[verifier]]\nkind = "exact"\n', rows[:80], rows[80:])
    with library_in(tmp_path / "tasks"):
        yield


async def run(folder: Path, config: RunConfig = UNTAUGHT) -> list[Event]:
    """Every event of a node that ran to its end."""
    seen: list[Event] = []
    await follow(make(folder, FakeEngine(LoadRequest("fake")), config), seen.append)
    return seen


def rounds(events: list[Event]) -> tuple[list[int], list[int]]:
    """Numbers of the rounds of examples, and of practice."""
    done = [e for e in events if isinstance(e, RoundFinished)]
    return [e.round for e in done if e.examples], [e.round for e in done if not e.examples]


async def test_a_base_that_is_never_right_imitates_first_and_practises_the_planned_rounds_after_it(
    tmp_path: Path,
) -> None:
    events = await run(tmp_path / "run")
    (trial,) = (e for e in events if isinstance(e, TrialMeasured))
    readings = [e for e in events if isinstance(e, ExamplesRead)]
    imitated, practised = rounds(events)
    assert trial.plan == "examples"
    assert "examples first" in trial.sentence
    assert imitated == list(range(len(imitated)))
    assert practised == [len(imitated) + n for n in range(3)]
    assert [e.over for e in readings] == [False] * (len(readings) - 1) + [True]
    assert readings[-1].right > 0
    assert readings[-1].step == len(imitated)
    assert readings[-1].tokens > 0


async def test_the_end_counts_what_is_in_the_weights_and_names_what_was_rolled_back(tmp_path: Path) -> None:
    """After going back, the rounds that were undone do not count: neither as trained nor towards the planned ones."""
    folder = tmp_path / "run"
    imitated, _ = rounds(await run(folder, msgspec.structs.replace(UNTAUGHT, rounds=1)))
    await run(folder)
    steps = f"{len(imitated)} step{'s' if len(imitated) > 1 else ''} of examples"
    going_back.go_back_on_disk(folder, UNTAUGHT, len(imitated) + 1, "run")
    again = await run(folder, msgspec.structs.replace(UNTAUGHT, rounds=6))
    ended = [e.sentence for e in again if isinstance(e, StateChanged)][-1]
    assert ended == f"Stopped after {steps} and 6 rounds of practice; 2 rounds more were rolled back."


@pytest.mark.parametrize("running", [True, False])
async def test_going_back_into_the_examples_goes_on_with_examples(tmp_path: Path, running: bool) -> None:
    folder = tmp_path / "run"
    imitated, practised = rounds(await run(folder, msgspec.structs.replace(UNTAUGHT, rounds=2)))
    assert (len(imitated) > 0, len(practised)) == (True, 2)
    if not running:
        going_back.go_back_on_disk(folder, UNTAUGHT, 0, "run")
        again = rounds(await run(folder, msgspec.structs.replace(UNTAUGHT, rounds=2)))
        assert (len(again[0]), len(again[1])) == (len(imitated), 2)
        return
    model = make(folder, FakeEngine(LoadRequest("fake")), msgspec.structs.replace(UNTAUGHT, rounds=0), as_left=True)
    going: list[asyncio.Task[None]] = []
    seen: list[Event] = []

    async def go_back() -> None:
        await model.go_back(0)
        model.command("resume")

    def watch(event: Event) -> None:
        seen.append(event)
        if isinstance(event, StateChanged) and event.reason == "done":
            if going:
                model.command("stop")
            else:
                going.append(asyncio.get_running_loop().create_task(go_back()))
        if isinstance(event, RoundFinished) and not event.examples:
            model.command("stop")

    await follow(model, watch)
    assert len(rounds(seen)[0]) == len(imitated), "every example is shown again to the untrained weights"


async def test_answers_get_the_room_that_the_examples_need(tmp_path: Path) -> None:
    """No answer of the table has more than a few tokens; the default limit is for models that write their way to an answer."""
    events = await run(tmp_path / "run")
    (trial,) = (e for e in events if isinstance(e, TrialMeasured))
    assert trial.limits == {"moods": 24}
    chosen = await run(tmp_path / "other", msgspec.structs.replace(UNTAUGHT, max_new_tokens=64))
    assert next(e for e in chosen if isinstance(e, TrialMeasured)).limits == {}


async def test_only_examples_ends_with_the_phase(tmp_path: Path) -> None:
    config = msgspec.structs.replace(UNTAUGHT, examples="only", rounds=0)
    imitated, practised = rounds(await run(tmp_path / "run", config))
    assert imitated
    assert practised == []


async def test_examples_can_be_switched_off_and_practice_that_teaches_nothing_says_so_once(tmp_path: Path) -> None:
    config = msgspec.structs.replace(UNTAUGHT, examples="off", rounds=5)
    events = await run(tmp_path / "run", config)
    imitated, practised = rounds(events)
    assert (imitated, len(practised)) == ([], 5)
    assert next(e for e in events if isinstance(e, TrialMeasured)).plan == "nothing"
    said = [e.text for e in events if isinstance(e, LogLine) and "Nothing to learn for 3 rounds" in e.text]
    assert len(said) == 1
    assert "all are wrong" in said[0]


async def test_a_run_without_a_number_of_rounds_pauses_once_everything_is_right(tmp_path: Path) -> None:
    rows = [{"question": f"Judge letter {n}.", "answer": "No"} for n in range(100)]
    write_folder(tmp_path / "tasks" / "plain", '[[verifier]]\nkind = "exact"\n', rows[:80], rows[80:])
    config = msgspec.structs.replace(UNTAUGHT, tasks=("plain",), rounds=0, temperature=0.01, eval_every=25)
    model = make(tmp_path / "run", FakeEngine(LoadRequest("fake")), config)
    seen: list[Event] = []

    pauses: list[str] = []

    def watch(event: Event) -> None:
        seen.append(event)
        if isinstance(event, StateChanged) and event.reason == "done":
            pauses.append(event.sentence)
            model.command("resume" if len(pauses) == 1 else "stop")

    await follow(model, watch)
    imitated, practised = rounds(seen)
    assert imitated
    assert len(practised) == 3, "none before it was let go on"
    assert "set-aside rows right · space goes on" in pauses[0]
    assert "nothing to learn from" in pauses[1]
    evaluated = [e.round for e in seen if isinstance(e, Evaluated)]
    assert evaluated == [0, len(imitated), len(imitated) + 3], "each result is measured before its pause"

    again = make(tmp_path / "run", FakeEngine(LoadRequest("fake")), config, as_left=True)
    reopened: list[Event] = []

    def look(event: Event) -> None:
        if event.seq > seen[-1].seq:
            reopened.append(event)
            if isinstance(event, StateChanged) and event.reason == "done":
                again.command("stop")

    await follow(again, look)
    assert any(isinstance(event, StateChanged) and event.reason == "done" for event in reopened)
    assert rounds(reopened) == ([], []), "the dashboard was opened again, and nobody asked for more practice"


async def test_a_dashboard_that_is_opened_does_not_train_on_what_had_done_its_planned_rounds(tmp_path: Path) -> None:
    planned = msgspec.structs.replace(CONFIG, rounds=1)
    assert rounds(await run(tmp_path / "run", planned)) == ([], [0])
    again = make(tmp_path / "run", FakeEngine(LoadRequest("fake")), msgspec.structs.replace(planned, rounds=0), True)
    reopened: list[Event] = []

    def look(event: Event) -> None:
        reopened.append(event)
        if isinstance(event, StateChanged) and event.state == "paused":
            again.command("stop")
        assert not (isinstance(event, RoundFinished) and event.round > 1)

    await follow(again, look)
    assert any(isinstance(e, StateChanged) and e.sentence == "Finished after round 1 · space goes on" for e in reopened)


async def test_a_bundled_base_was_taught_the_form_and_practises_at_once(tmp_path: Path) -> None:
    events = await run(tmp_path / "run", msgspec.structs.replace(CONFIG, rounds=1))
    assert not any(isinstance(e, TrialMeasured) for e in events)
    assert rounds(events) == ([], [0])


async def test_the_base_is_evaluated_before_the_phase_the_model_after_it_and_after_the_last_planned_round(
    tmp_path: Path,
) -> None:
    config = msgspec.structs.replace(UNTAUGHT, eval_every=25)
    events = await run(tmp_path / "run", config)
    imitated, practised = rounds(events)
    assert [e.round for e in events if isinstance(e, Evaluated)] == [0, len(imitated), len(imitated) + len(practised)]


async def test_no_held_out_row_and_no_row_set_aside_is_an_example(tmp_path: Path) -> None:
    rows = [{"question": f"Judge letter {n}.", "answer": "Yes"} for n in range(60)]
    leaked = [
        *rows[:40],
        {"question": "Judge LETTER 55 ", "answer": "Yes"},
        {"question": "Judge letter 3", "answer": "No"},
    ]
    write_folder(tmp_path / "tasks" / "leaky", '[[verifier]]\nkind = "exact"\n', leaked, rows[40:])
    config = msgspec.structs.replace(UNTAUGHT, tasks=("leaky",))
    async with Scorer() as scorer:
        source = ExampleSource(config, "key", "silo", scorer, frozenset(), lambda _: True)
        await source.open()
        shown = {e.question.prompt.casefold().strip(" .") for n in range(3) for e in await source.of_pass(n)}
        apart = {e.question.prompt.casefold().strip(" .") for e in source.apart}
    held_out = {row["question"].casefold().strip(" .") for row in rows[40:]}
    assert len(shown) >= 30
    assert len(apart) == 10
    assert not shown & held_out
    assert not apart & held_out
    assert not shown & apart


async def test_what_does_not_pass_its_own_verifier_is_no_example(tmp_path: Path) -> None:
    """reasoning_gym's own answers and a table's: each is judged like a model's answer."""
    rows = [{"question": f"Judge letter {n}.", "answer": "Yes" if n % 2 else "perhaps"} for n in range(60)]
    toml = '[[verifier]]\nkind = "choice"\noptions = ["Yes", "No"]\n'
    write_folder(tmp_path / "tasks" / "picky", toml, rows[:40], rows[40:])
    config = msgspec.structs.replace(UNTAUGHT, tasks=("picky", "calendar_arithmetic"))
    async with Scorer() as scorer:
        source = ExampleSource(config, "key", "silo", scorer, frozenset(), lambda _: True)
        await source.open()
        examples = await source.of_pass(0)
        for example in examples[:20]:
            assert (await scorer.score(example.question.ref, [example.text])).rewards == (1.0,)
    picky = [e for e in examples if e.question.ref.dataset == "picky"]
    assert {e.text for e in picky} == {"<answer>Yes</answer>"}
    assert len(examples) > len(picky) > 0
    assert source.rejected >= 10


async def test_a_phase_that_was_stopped_goes_on_with_the_next_batch(tmp_path: Path) -> None:
    """The weights at its end are those of a phase that nothing disturbed."""
    config = msgspec.structs.replace(UNTAUGHT, examples="only")
    straight, _ = rounds(await run(tmp_path / "straight", config))
    broken = make(tmp_path / "broken", FakeEngine(LoadRequest("fake")), config)

    def stop(event: Event) -> None:
        if isinstance(event, RoundFinished) and event.round == 2:
            broken.command("stop")

    await follow(broken, stop)
    later = await run(tmp_path / "broken", config)
    assert not any(isinstance(e, TrialMeasured) for e in later)
    again, _ = rounds(read_only(tmp_path / "broken" / "journal.db"))
    assert again == straight
    assert weights(tmp_path / "broken", len(again)) == weights(tmp_path / "straight", len(straight))


FLAGS = (*node_process.FAKE, "--examples", "only")


async def test_kill_in_the_phase_takes_back_no_finished_step(tmp_path: Path) -> None:
    """kill -9 in an update and in a reading; the end is that of an undisturbed phase."""
    sapo(tmp_path / "straight", "node", *FLAGS)
    (straight,) = (tmp_path / "straight" / "data" / "models").iterdir()
    for wanted in (2, 5):
        async with node(tmp_path / "killed", *FLAGS, "--model", "fake:0.001") as (client, process):
            await reaches(client, ("round",), lambda e, n=wanted: isinstance(e, RoundFinished) and e.round >= n)
            process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait)
    done = await asyncio.to_thread(sapo, tmp_path / "killed", "node", *FLAGS, "--model", "fake:0.001")
    assert done.returncode == 0, done.stderr
    (killed,) = (tmp_path / "killed" / "data" / "models").iterdir()
    assert on_disk(killed).told == on_disk(straight).told
    steps = on_disk(straight).done
    assert weights(killed, steps) == weights(straight, steps)
    readings = [e for e in read_only(killed / "journal.db", ("examples",)) if isinstance(e, ExamplesRead)]
    assert [e.step for e in readings] == sorted({e.step for e in readings})
    assert readings[-1].over


def test_the_plan_counts_rounds_of_practice_after_the_phase(tmp_path: Path) -> None:
    """A model that imitated N steps and practised 2 rounds has 2 rounds: --rounds 3 trains one more."""
    sapo(tmp_path, "node", *FLAGS)
    sapo(tmp_path, "node", *node_process.FAKE, "--examples", "auto", "--rounds", "2")
    done = sapo(tmp_path, "node", *node_process.FAKE, "--rounds", "3", "--json")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "data" / "models").iterdir()
    told = [e for e in read_only(folder / "journal.db", ("round",)) if isinstance(e, RoundFinished)]
    assert sum(not e.examples for e in told) == 3
    refused = sapo(tmp_path, "node", *node_process.FAKE, "--rounds", "2")
    assert "has 3 rounds of practice already" in refused.stderr
