"""The data that the wizard's screens and HomeTasks exchange. Light: no engine is imported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FileChoice:
    """A file or folder on offer. path: what choosing it puts into the field; detail: its size and age; folder: choosing it
    opens it."""

    name: str
    path: str
    detail: str
    folder: bool = False


@dataclass(frozen=True)
class WizardAnswers:
    """What the person says about a file; "" leaves it to the app. verifier: a kind, such as "number"; rules: that an answer
    keeps, instead of a verifier that compares it with the answer column; base: to be trained."""

    path: str
    name: str = ""
    question: str = ""
    answer: str = ""
    prompt: str = ""
    extract: str = ""
    verifier: str = ""
    rules: str = ""
    base: str = ""


@dataclass(frozen=True)
class TaskPreview:
    """A file as a task that is not stored yet.

    answers: completed with everything that was left to the app. rows: (question, answer) of the first ones, cut. verifiers:
    (kind, why), the proposed one first where none was chosen. summary: sentences about what it is; said: things to check,
    with row numbers. asked: the first row's question in lines, as the model will read it; extract: where the answer is, as
    the app proposes it.
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
    """The result of trying verifier and model. shortcuts: figures; warnings: what to fix; expectation: of the model."""

    shortcuts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    expectation: tuple[str, ...] = ()


@dataclass(frozen=True)
class WizardResult:
    """The wizard's result: a stored task, and the base that a new model shall start from."""

    task: str
    base: str


@dataclass(frozen=True)
class MeasurementStep:
    """A step of measuring. progress: a line that replaces the one before; measured: the result, in the last step."""

    progress: str = ""
    measured: TaskMeasurement | None = None
