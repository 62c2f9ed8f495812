"""What the dashboard can have done, scripted: the same on every machine and at every hour, so that screens can be compared."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from pathlib import Path

from sapo_desktop.services.machine.self_test import Finding
from sapo_desktop.services.models import going_back
from sapo_desktop.services.models.pieces import ChatChunk, HeldOut, Marks
from sapo_desktop.services.models.screen.interface import (
    ExportChoice,
    KeptRow,
    KeptTable,
    ModelListing,
    NewModel,
    NewModelInfo,
    ProgressUpdate,
)
from sapo_desktop.services.models.screen.settings_actions import HomeSettings
from sapo_desktop.services.models.shelf.history import TrainingHistory
from sapo_desktop.services.models.shelf.overview import ModelOverview
from sapo_desktop.services.models.shelf.store import Model, ModelRecord
from sapo_desktop.services.swarms.interface import HostedSwarm, ListedSwarm, OfferedTask, PendingNode, SwarmDirectory
from sapo_desktop.services.tasks.wizard.interface import (
    FileChoice,
    MeasurementStep,
    TaskMeasurement,
    TaskPreview,
    WizardAnswers,
)
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Evaluated, Event, GreedyScore, RoundFinished, RunStarted
from sapo_swarm.node.going_back import KeptState
from sapo_swarm.node.training_count import TrainingCount

FOLDER = Path("/home/me/models")
INVITE = "sapo://192.0.2.7:8777/#t=00112233445566778899aabbccddeeff&s=aaaaaaaaaaaaaaaa"


def _model(name: str, number: int, events: list[Event], now: float) -> ModelOverview:
    record = ModelRecord(
        id=f"{number:032x}",
        name=name,
        base="starter",
        created=now - 86_400 * number,
        method="full",
        precision="float32",
        lora_rank=0,
        config=RunConfig(),
        last_trained=now - 600 * number,
    )
    story = TrainingHistory(
        tuple(event for event in events if isinstance(event, RunStarted)),
        tuple(event for event in events if isinstance(event, RoundFinished)),
        tuple(event for event in events if isinstance(event, Evaluated)),
    )
    return ModelOverview(Model(FOLDER / name, record, ()), story, 61_000_000 * number)


def _evaluated(rounds: int, sampled: float, greedy: float) -> Evaluated:
    return Evaluated(
        round=rounds,
        temperature=1.0,
        items=64,
        pass_at_1=sampled,
        low=sampled - 0.1,
        high=sampled + 0.1,
        delta=None,
        delta_low=None,
        delta_high=None,
        tasks=(),
        seconds=1.0,
        greedy=GreedyScore(64, greedy, greedy - 0.1, greedy + 0.1),
    )


class ScriptedModels:
    """Two models: one with the rounds that are given, one without any. Nothing can be done with them."""

    def __init__(self, events: list[Event]) -> None:
        now = max(event.time for event in events)
        self.models: tuple[ModelOverview, ...] = (_model("sums", 1, events, now), _model("new-one", 2, [], now))

    async def shelf(self) -> ModelListing:
        return ModelListing(self.models, self.models[0].model.record.id if self.models else "")

    async def offer(self) -> NewModelInfo:
        return NewModelInfo("another", (("starter", "bundled"),), (("starter", "easy settings"),))

    async def new(self, answers: NewModel) -> str:
        return f"Made {answers.name}"

    async def proceed(self, id: str) -> str:
        return f"The node goes on with {id[-1]}"

    async def rename(self, id: str, name: str) -> str:
        return f"Renamed {id[-1]} to {name}"

    async def duplicate(self, id: str, name: str) -> str:
        return f"Duplicated {id[-1]} as {name}"

    async def delete(self, id: str) -> str:
        return f"Deleted {id[-1]}"

    async def spare(self, id: str) -> tuple[int, int]:
        return (0, 0) if id == self.models[1].model.record.id else (3, 45_000_000)

    async def kept_states(self, id: str) -> KeptTable:
        states = (
            KeptState(120, -90.0, "stop", -1, None, False, False, True, TrainingCount(16, 63)),
            KeptState(
                80, -7200.0, "rollback", 40, _evaluated(80, 0.61, 0.703), True, True, False, TrainingCount(16, 24)
            ),
            KeptState(
                40, -9000.0, "evaluation", -1, _evaluated(40, 0.605, 0.64), False, False, False, TrainingCount(16, 24)
            ),
            KeptState(0, -86400.0, "start", -1, _evaluated(0, 0.125, 0.109), False, False, False, TrainingCount()),
        )
        rows = tuple(KeptRow(state.round, going_back.kept_state_line(state, 0.0), state.current) for state in states)
        return KeptTable(going_back.kept_state_header(), rows, going_back.LEGEND)

    async def go_back(self, id: str, target: int) -> str:
        return f"{id[-1]} has the weights after round {target} again"

    async def free(self, id: str) -> str:
        return f"Freed space of {id[-1]}"

    def exports(self, id: str) -> tuple[ExportChoice, ...]:
        return (ExportChoice("hf", "for transformers", ("hf",)),)

    async def export(self, id: str, choice: ExportChoice) -> AsyncGenerator[ProgressUpdate]:
        yield ProgressUpdate(progress="Writing the weights")
        yield ProgressUpdate(
            result=(
                f"{FOLDER}/exports/{choice.arguments[0]} is written: 61 MB.",
                "Loaded again: 20 of 20 answers equal.",
            )
        )

    async def compare(self, first: str, second: str, items: int) -> AsyncGenerator[ProgressUpdate]:
        yield ProgressUpdate(progress="12 of 450")
        held = "   9.5 %    19.8 %    +10.3 points (95 %: +7.3 to +13.3)"
        yield ProgressUpdate(
            result=(f"{items} questions a task, T=0", f"held-out pass@1{held}", f"binary_matrix  {held}")
        )

    async def chat(self, id: str) -> ScriptedChat:
        return ScriptedChat()


class ScriptedChat:
    """Two answers to every question, the second one longer."""

    labels = ("base", "sums")
    early = without_marks = wording = ""

    async def ask(self, question: str) -> AsyncGenerator[ChatChunk]:
        yield ChatChunk(0, f"I do not know what {question} is. I do not know what it", cut=True)
        yield ChatChunk(1, f"Let me see: {question} has an answer, and that is <answer>42</answer>")

    async def next_held_out(self) -> AsyncGenerator[HeldOut | ChatChunk | Marks]:
        yield HeldOut(1, "chain_sum", "State the final answer: 4 + 3 = ?", "7")
        yield ChatChunk(0, "It is <answer>8</answer>")
        yield ChatChunk(1, "It is <answer>7</answer>")
        yield Marks((0.0, 1.0), (0, 1), 1)

    async def stop(self) -> None:
        return None

    async def close(self) -> None:
        return None


class ScriptedSwarms:
    """One directory with two swarms, one task on offer; nothing can be joined for real."""

    def __init__(self) -> None:
        self.runs = False

    def hosting(self) -> bool:
        return self.runs

    async def join(self, invite: str, listed: bool = False) -> str:
        return "Joined for trial" if listed else "Joined"

    async def stay(self) -> str:
        return "Stayed"

    async def directories(self, fresh: bool = False) -> tuple[SwarmDirectory, ...]:
        swarms = (
            ListedSwarm(
                "Evening sums", "nine reasoning tasks", 37, 1240.0, "every group by every node", True, INVITE, ""
            ),
            ListedSwarm("Proofs", "propositional_logic", 4, 60.0, "by hand", False, "", "ask proofs@example.org"),
        )
        return (SwarmDirectory("example.org", "Swarms of example.org", swarms, note="it did not answer: read 2 d ago"),)

    async def wrong_with(self, invite: str) -> str:
        return "It takes no more nodes today."

    async def add_directory(self, line: str) -> None:
        return None

    async def host(self, everybody: bool, approve: bool = False) -> HostedSwarm:
        return HostedSwarm("friends", (INVITE,), "http://192.0.2.7:8777/")

    async def waiting(self) -> tuple[PendingNode, ...]:
        return ()

    async def let_in(self, guest: PendingNode) -> str:
        return f"Let {guest.name} in"

    async def stop_hosting(self) -> str:
        return "Stopped hosting"

    async def leave(self) -> str:
        return "Left"

    async def offered(self) -> tuple[OfferedTask, ...]:
        lines = ("order_json: 240 rows, judged by json", "", "1. Sort 3 1 2 as JSON.", "   answer: [1, 2, 3]")
        return (OfferedTask("order_json", "0" * 64, lines),)

    async def accept(self, task: OfferedTask) -> str:
        return f"Accepted {task.name}"


class ScriptedTasks:
    """The wizard's first screen: a folder with two tables."""

    async def places(self, typed: str) -> tuple[FileChoice, ...]:
        found = (
            FileChoice("my sums.csv", "/home/me/my sums.csv", "12 kB, 3 min ago"),
            FileChoice("words.jsonl", "/home/me/words.jsonl", "1.2 MB, 4 d ago"),
            FileChoice("..", "/home/", "the folder above", True),
        )
        return tuple(place for place in found if place.name.startswith(typed))

    async def models(self) -> tuple[tuple[str, str], ...]:
        return (("starter", "bundled, nothing to download"),)

    async def look(self, answers: WizardAnswers) -> TaskPreview:
        found = replace(
            answers,
            name=answers.name or "my_sums",
            question=answers.question or "sum",
            answer=answers.answer or "result",
            verifier=answers.verifier or "number",
        )
        return TaskPreview(
            columns=("sum", "result", "comment"),
            answers=found,
            rows=(("What is 17 + 25?", "42"), ("What is 9 + 9?", "18")),
            verifiers=(("number", "all 240 answers are numbers"), ("text", "the same text")),
            summary=("240 rows with 3 columns; 216 to train on, 24 held out.",),
            said=("Row 12 has no answer: it is left out.", "Rows 30 and 31 ask the same."),
            asked=("What is 17 + 25?", "", "Reply with the number only."),
        )

    async def taken(self, name: str) -> bool:
        return False

    async def keep(self, answers: WizardAnswers, replace: bool) -> str:
        return answers.name

    async def measure(self, name: str, base: str, source: str) -> AsyncGenerator[MeasurementStep]:
        yield MeasurementStep(progress="32 of 64 questions")
        yield MeasurementStep(
            measured=TaskMeasurement(
                shortcuts=("Always answering 18: 4 % right.",),
                warnings=("Row 44 is answered right by its own digits.",),
                expectation=(f"{base} solves 20 % of it now: there is something to reinforce.",),
            )
        )

    async def train(self, name: str, base: str) -> str:
        return f"The node trains a new model on {name}"

    async def rate(self, model: str, question: str, text: str, good: bool) -> str:
        return "Kept as a good answer" if good else "Kept as a bad answer"


class SettingsOfNowhere(HomeSettings):
    """The settings of an empty home, whose place is not told."""

    def describe(self) -> str:
        return "/home/me/config.toml"

    async def restart(self) -> str:
        return "The node starts again."


async def findings() -> AsyncIterator[Finding]:
    """What the doctor of some machine says."""
    yield Finding("ok", "version", "sapo-desktop 0.1.0, Python 3.12.0")
    yield Finding("ok", "machine", "Linux x86_64, 4 cores, 5.91 GB of 8.27 GB memory free")
    yield Finding("note", "llama.cpp", "is not installed. To install it: pip install 'sapo-desktop[llamacpp]'")
    yield Finding("fail", "disk", "430 MB free at /home/me. Free at least 1.00 GB.")
