"""What the wizard's screens and HomeTasks tell each other. Light: no engine is imported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FileChoice:
    """A file or folder on offer. path: what choosing it puts into the field; detail: its size and age; folder: it is opened."""

    name: str
    path: str
    detail: str
    folder: bool = False


@dataclass(frozen=True)
class WizardAnswers:
    """What the person says about a file; "" leaves it to the app. verifier: a kind, such as "number"; base: to be trained."""

    path: str
    name: str = ""
    question: str = ""
    answer: str = ""
    prompt: str = ""
    extract: str = ""
    verifier: str = ""
    base: str = ""


@dataclass(frozen=True)
class TaskPreview:
    """A file as a task that is not stored yet.

    answers: with everything that was left to the app. rows: (question, answer) of the first ones, cut. verifiers: (kind, why),
    the chosen one first where nothing was chosen. summary: sentences on what it is; said: things to look at, with row numbers.
    asked: the first row's question in lines, as the model will read it; extract: where the answer stands, as the app proposes it.
    """

    columns: tuple[str, ...]
    answers: WizardAnswers
    rows: tuple[tuple[str, str], ...]
    verifiers: tuple[tuple[str, str], ...]
    summary: tuple[str, ...]
    said: tuple[str, ...]
    asked: tuple[str, ...] = ()
    extract: str = ""


@dataclass(frozen=True)
class TaskMeasurement:
    """What asking verifier and model told. shortcuts: figures; warnings: what to mend; expectation: of the model."""

    shortcuts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    expectation: tuple[str, ...] = ()


@dataclass(frozen=True)
class WizardResult:
    """What the wizard ends with: a stored task, and the base that a new model shall start from."""

    task: str
    base: str


@dataclass(frozen=True)
class MeasurementStep:
    """A step of measuring. progress: a line that the next one replaces; measured: the end of it."""

    progress: str = ""
    measured: TaskMeasurement | None = None
