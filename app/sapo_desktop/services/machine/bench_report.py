"""What `sapo-desktop bench` says: lines of text at most 80 columns wide, and JSON objects."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sapo_backends.common.hardware import Hardware
from sapo_backends.common.round_memory import ModelSize
from sapo_backends.errors import size_text
from sapo_backends.measure.choice import WIDTHS, Choice, Measured, Workload, format_seconds, round_seconds
from sapo_backends.measure.machine_limits import Limits, most_generated, most_trained

COLUMNS = 80
_BUSY = 0.5
"""Share of the cores in use by other programs that spoils a measurement."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured and on what. size: None where the model's files do not tell. limits: by engine."""

    model: str
    method: str
    size: ModelSize | None
    machine: Hardware
    processor: str
    limits: Mapping[str, Limits]
    workload: Workload


def too_busy(busy: float, machine: Hardware) -> bool:
    """Whether a measurement made beside so many busy processors tells nothing."""
    return busy > _BUSY * machine.cores


def shares(subject: Subject, measured: Measured) -> tuple[dict[int, float], float]:
    """Each rate as a fraction of the machine's own limit, at each width and for training; 0 where it is not known."""
    size, limits = subject.size, subject.limits.get(measured.candidate.engine.rpartition("+")[2])
    if size is None or limits is None:
        return dict.fromkeys(measured.generation, 0.0), 0.0
    generating, _, training = measured.precision.rpartition(" + ")
    generated = {w: _share(r, most_generated(size, w, limits, generating or training)) for w, r in _rates(measured)}
    return generated, _share(measured.update, most_trained(size, limits, training))


def _rates(measured: Measured) -> list[tuple[int, float]]:
    return sorted(measured.generation.items())


def _share(rate: float, most: float) -> float:
    return rate / most if most > 0 else 0.0


def header(subject: Subject) -> Iterator[str]:
    """The lines above the table."""
    machine, size = subject.machine, subject.size
    of = f": {size.parameters / 1e6:,.1f}M parameters, {_TRAINED[subject.method]}" if size else ""
    yield f"{subject.model}{of}"
    yield f"{subject.processor}, {machine.cores} core{'s' * (machine.cores > 1)}, {machine.matrix_unit}"
    for engine, limits in subject.limits.items():
        rates = ", ".join(f"{rate / 1e9:,.0f} GFLOP/s in {kind}" for kind, rate in limits.multiply.items())
        yield from _wrapped(f"Limits ({engine}): {rates}; reads {limits.read / 1e9:.0f} GB/s")


_TRAINED = {"full": "all of them trained", "lora": "a LoRA adapter trained", "none": "none trained"}


def table_header() -> Iterator[str]:
    """The two lines above the figures."""
    widths = "".join(f"{f'{w} wide':>9}" for w in WIDTHS)
    yield f"{'tokens/s':<27}{widths}{'training':>9}{'memory':>10}{'round':>7}"


def row(subject: Subject, measured: Measured, *, again: bool = False) -> Iterator[str]:
    """A candidate's line, and one with the shares of the machine's limit where they are known.

    again: measured a second time, the better figures of both.
    """
    name = f"{measured.candidate}{'*' if again else ''}"
    if measured.failure:
        yield from _wrapped(f"{name:<27} failed: {measured.failure}")
        return
    generated, trained = shares(subject, measured)
    rates = "".join(f"{measured.generation.get(w, 0):>9,.0f}" for w in WIDTHS)
    seconds = round_seconds(measured, subject.workload)
    update = f"{measured.update:,.0f}" if measured.update else "-"
    took = format_seconds(seconds) if seconds is not None else "-"
    yield f"{name:<27}{rates}{update:>9}{size_text(measured.memory):>10}{took:>7}"
    if trained or any(generated.values()):
        parts = "".join(f"{_percent(generated.get(w, 0)):>9}" for w in WIDTHS)
        yield f"{'  of the limit':<27}{parts}{_percent(trained):>9}".rstrip()
    if measured.computed_by:
        yield from _wrapped(f"  by {measured.computed_by}")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if 0 < share < 0.1 else f"{100 * share:.0f} %" if share else ""


def footer(subject: Subject, choice: Choice | None, memory: str, busy: float, *, kept: bool) -> Iterator[str]:
    """The lines below the table. kept: new runs will use the choice. busy: processors that others kept busy."""
    work = subject.workload
    update = " and an update on all of them" if work.trains else ""
    yield f"{'round':<14}{work.rows} completions of {work.new_tokens} tokens{update}"
    yield f"{'memory':<14}the most that the measuring process held"
    yield f"{'by':<14}which decoder and which of its implementations"
    yield f"{'of the limit':<14}share of what the machine's arithmetic and memory allow at most"
    yield f"{'*':<14}measured twice, being near the fastest; the better figures of both"
    yield ""
    if too_busy(busy, subject.machine):
        yield from _wrapped(
            f"Other programs kept about {busy:.1f} of {subject.machine.cores} cores busy when this began, so figures are "
            "too low and the choice is unsure. Measure again when the machine is quiet."
        )
    if memory:
        yield from _wrapped(f"Memory: {memory}.")
    if choice is None:
        yield from _wrapped("Nothing that trains was measured, so new runs keep the default engine.")
        return
    yield from _wrapped(f"{'Chosen' if kept else 'Fastest'}: {choice.candidate}, because {choice.reason}")
    if not kept:
        yield from _wrapped(
            "New runs take no notice of this: it was a quick look, or the machine was too busy (--anyway)."
        )
        return
    yield from _wrapped(
        "New runs with these settings use it; runs that have begun stay as they are. "
        "Your own settings go first: run.trainer, run.precision, run.threads."
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, COLUMNS, subsequent_indent="  ", break_on_hyphens=False)


def objects(
    subject: Subject,
    measured: Sequence[Measured],
    choice: Choice | None,
    memory: Mapping[str, int] | None,
    busy: float,
) -> Iterator[dict[str, Any]]:
    """The same as JSON objects, one a line; rates in tokens/s, sizes in bytes, shares of the limit from 0 to 1."""
    yield {
        "kind": "machine",
        "processor": subject.processor,
        "busy_processors": busy,
        **asdict(subject.machine),
        "limits": {engine: asdict(limits) for engine, limits in subject.limits.items()},
    }
    size = asdict(subject.size) if subject.size else {}
    yield {"kind": "model", "model": subject.model, "method": subject.method, **size}
    for one in measured:
        generated, trained = shares(subject, one)
        yield {
            "kind": "measured",
            **asdict(one),
            "generation_of_limit": generated,
            "update_of_limit": trained,
            "round_seconds": round_seconds(one, subject.workload),
        }
    if memory:
        yield {"kind": "memory", **memory}
    yield {"kind": "choice", **(asdict(choice) if choice else {"candidate": None})}
