"""Which engine, precision and number of threads a machine should use for a model, from what was measured there.

Pure: sapo_backends.measure.probe measures, the app keeps the figures. Belief is a bad guide: with a matrix unit torch
samples 64 rows three times as fast as llama.cpp and one row half as fast; without one the order is reversed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from sapo_backends.common.hardware import is_four_bit

AUTO = "auto"
PAIR_GAIN = 1.2
"""A second engine that generates costs memory, a hand-over and a train-inference mismatch: it must make a whole round
so many times faster."""
TIE = 1.05
"""Nearer than this counts as equal; then fewer threads and float32 win, which leave the person more and round less."""
TORCH = ("float32", "bfloat16")
"""torch's precisions."""
NEAR = 1.3
"""Candidates within this factor of the fastest are measured twice."""
WIDTHS = (1, 8, 64)
"""Rows decoded at once in the measurement: a chat, a group, a round."""


@dataclass(frozen=True, slots=True)
class EngineCandidate:
    """What could be used. engine: a registered trainer or a pair. threads 0: the engine does not compute on cores."""

    engine: str
    precision: str = AUTO
    threads: int = 0

    def __str__(self) -> str:
        name = self.engine if self.precision == AUTO else f"{self.engine} {self.precision}"
        return f"{name}, {self.threads} thread{'s' * (self.threads > 1)}" if self.threads else name


@dataclass(frozen=True, slots=True)
class EngineMeasurement:
    """What one candidate did. Rates are tokens/s.

    generation: at each width, after the prompt. first: seconds until the first token of the widest batch. update:
    completion tokens trained on; 0: it does not train. hand_over: seconds a round to give a pair's generator the new
    weights. memory: the process's peak, in bytes. failure: why there are no figures. computed_by: as the
    engine says it, "" when it does not.
    """

    candidate: EngineCandidate
    device: str = ""
    precision: str = ""
    generation: Mapping[int, float] = field(default_factory=dict)
    first: float = 0.0
    update: float = 0.0
    hand_over: float = 0.0
    memory: int = 0
    failure: str = ""
    computed_by: str = ""


PROMPT = 64
"""Tokens of a question where nobody counted them."""


@dataclass(frozen=True, slots=True)
class RoundWorkload:
    """A round: rows completions of new_tokens each on average, all trained on, or none: a node that only generates.

    prompt: tokens of a question, read once for its group of group_size; shared: those that all questions begin with, read once.
    most: tokens of the longest completion, 0: all are about as long.
    """

    rows: int = 64
    new_tokens: float = 96
    trains: bool = True
    group_size: int = 8
    prompt: float = PROMPT
    shared: float = 0.0
    most: float = 0.0

    @property
    def groups(self) -> float:
        """Questions."""
        return self.rows / self.group_size

    @property
    def longest(self) -> float:
        """Tokens of the longest completion."""
        return max(self.most, self.new_tokens, 1.0)

    @property
    def prompt_tokens(self) -> float:
        """Read before the first token is written."""
        return self.shared + self.groups * (self.prompt - self.shared)


@dataclass(frozen=True, slots=True)
class EnginePreference:
    """What the person decided; "auto" and 0 leave it open."""

    engine: str = AUTO
    precision: str = AUTO
    threads: int = 0

    def allows(self, candidate: EngineCandidate) -> bool:
        """Whether a candidate agrees with all that the person decided."""
        return (
            self.engine in (AUTO, candidate.engine)
            and self.precision in (AUTO, candidate.precision)
            and self.threads in (0, candidate.threads)
        )


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The candidate to use, the seconds its round takes by the measurement, and why it is this one."""

    candidate: EngineCandidate
    seconds: float
    reason: str


def list_candidates(
    engines: Collection[str],
    threads: int,
    wanted: EnginePreference,
    *,
    apple: bool = False,
    gpu: bool = False,
    bfloat16: bool = True,
    trains: bool = True,
) -> list[EngineCandidate]:
    """What is worth measuring, trainers first. engines: those that work here. threads: at most so many.

    apple: the machine has Metal, elsewhere mlx is only for tests. gpu: torch computes on a graphics processor. bfloat16:
    the processor has instructions for it; without them torch takes 14 times as long. trains: otherwise llama.cpp will do
    on its own. Pairs are left out: they are tried with the best trainer's settings, see `pairs`.
    """
    trainer = wanted.engine.rpartition("+")[2]
    if trainer not in (AUTO, "torch", "mlx"):  # a plug-in, or llama.cpp alone: as the person set it
        return [EngineCandidate(wanted.engine, wanted.precision, wanted.threads)] if wanted.engine in engines else []
    found: list[EngineCandidate] = []
    if "mlx" in engines and (trainer == "mlx" or (apple and trainer == AUTO)):
        found.append(EngineCandidate("mlx", wanted.precision))
    if "torch" in engines and trainer in (AUTO, "torch"):
        counts = [0] if gpu else [wanted.threads] if wanted.threads else _counts(threads)
        is_torchs = wanted.precision in TORCH or is_four_bit(wanted.precision)  # another kind is for a pair's generator
        kinds = (wanted.precision,) if is_torchs else TORCH if bfloat16 or gpu else TORCH[:1]
        found += [EngineCandidate("torch", kind, count) for kind in kinds for count in counts]
    if "llamacpp" in engines and trainer == AUTO and not trains:
        kind = AUTO if wanted.precision in TORCH else wanted.precision
        found.append(EngineCandidate("llamacpp", kind, wanted.threads or threads))
    return found


def _counts(threads: int) -> list[int]:
    """1, 2, 4, ... and all."""
    return sorted({1 << i for i in range(threads.bit_length()) if 1 << i <= threads} | {threads})


def list_pair_candidates(
    engines: Collection[str], measured: Sequence[EngineMeasurement], workload: RoundWorkload, wanted: EnginePreference
) -> list[EngineCandidate]:
    """The pairs worth measuring, once their trainers are: each with the threads of its trainer's best candidate."""
    found: list[EngineCandidate] = []
    for name in engines if workload.trains else ():
        generator, plus, trainer = name.partition("+")
        alone = [m for m in measured if m.candidate.engine == trainer]
        best = _fastest(alone, workload)
        if plus and generator in engines and best is not None and wanted.engine in (AUTO, name):
            found.append(EngineCandidate(name, wanted.precision, best.candidate.threads))
    return found


def find_finalists(measured: Sequence[EngineMeasurement], workload: RoundWorkload) -> list[EngineCandidate]:
    """Those so near to the fastest that a moment's noise may have ordered them; empty when the fastest is alone.

    They deserve a second measurement, `merged` with the first.
    """
    timed = [(seconds, m) for m in measured if (seconds := round_seconds(m, workload)) is not None]
    near = [m.candidate for seconds, m in timed if seconds <= NEAR * min(s for s, _ in timed)]
    return near if len(near) > 1 else []


def merge_measurements(one: EngineMeasurement, two: EngineMeasurement) -> EngineMeasurement:
    """The best of two measurements of a candidate: whatever else a machine does makes its figures only worse."""
    if one.failure or two.failure:
        return two if one.failure else one
    return replace(
        one,
        generation={w: max(rate, two.generation.get(w, 0.0)) for w, rate in one.generation.items()},
        first=min(one.first, two.first),
        update=max(one.update, two.update),
        hand_over=min(one.hand_over, two.hand_over),
        memory=max(one.memory, two.memory),
    )


@dataclass(frozen=True, slots=True)
class MeasuredRates:
    """What was measured of a candidate that works, as rates of other rounds than the measured one."""

    measured: EngineMeasurement

    def generate(self, work: RoundWorkload) -> float:
        """Seconds to read the prompts and write the answers; at the widest measured width that the rows fill."""
        rates = {width: rate for width, rate in self.measured.generation.items() if rate > 0}
        width = max((w for w in rates if w <= work.rows), default=min(rates))
        prompts = self.measured.first * work.rows / max(rates)
        return prompts + work.rows * work.new_tokens / rates[width]

    def update(self, context: float, answers: float) -> float:
        """Seconds of an update on so many tokens of answers behind so many of prompts, which the measured one had few of."""
        return (context + answers) / self.measured.update + self.measured.hand_over


def round_seconds(measured: EngineMeasurement, workload: RoundWorkload) -> float | None:
    """Seconds of a round, to compare candidates by; None for what failed, or does not train where the round does."""
    widths = [w for w in measured.generation if measured.generation[w] > 0]
    if measured.failure or not widths or (workload.trains and measured.update <= 0):
        return None
    rates = MeasuredRates(measured)
    generation = rates.generate(workload)
    return generation + rates.update(0.0, workload.rows * workload.new_tokens) if workload.trains else generation


def format_seconds(seconds: float) -> str:
    """With one decimal while that says something."""
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:,.0f} s"


def _fastest(measured: Sequence[EngineMeasurement], workload: RoundWorkload) -> EngineMeasurement | None:
    """The fastest, or of those about as fast the one with the fewest threads, then float32."""
    timed = [(seconds, m) for m in measured if (seconds := round_seconds(m, workload)) is not None]
    if not timed:
        return None
    bound = TIE * min(seconds for seconds, _ in timed)
    near = [(m.candidate.threads, m.precision != "float32", seconds, i) for i, (seconds, m) in enumerate(timed)]
    return timed[min(key for key in near if key[2] <= bound)[3]][1]


def choose_engine(
    measured: Sequence[EngineMeasurement], workload: RoundWorkload, wanted: EnginePreference | None = None
) -> EngineChoice | None:
    """The candidate to use among those that the person's own settings leave; None when nothing was measured for them.

    A pair is chosen only if it makes the whole round PAIR_GAIN times faster than the best single engine.
    """
    open_ones = [m for m in measured if wanted is None or wanted.allows(m.candidate)]
    single = _fastest([m for m in open_ones if "+" not in m.candidate.engine], workload)
    pair = _fastest([m for m in open_ones if "+" in m.candidate.engine], workload)
    if single is None or pair is None:
        best = single or pair
        return None if best is None else _choice(best, open_ones, workload, "")
    gain = _seconds(single, workload) / _seconds(pair, workload)
    if gain > PAIR_GAIN:
        return _choice(pair, open_ones, workload, "")
    how = f"{gain:.2f} times as fast" if gain > 1 else "no faster"
    return _choice(single, open_ones, workload, f" {pair.candidate.engine} is {how}; {PAIR_GAIN:g} times is required.")


def _seconds(measured: EngineMeasurement, workload: RoundWorkload) -> float:
    seconds = round_seconds(measured, workload)
    assert seconds is not None
    return seconds


def _choice(
    best: EngineMeasurement, measured: Sequence[EngineMeasurement], workload: RoundWorkload, remark: str
) -> EngineChoice:
    mine = _seconds(best, workload)
    others = [(s, m) for m in measured if m is not best and (s := round_seconds(m, workload)) is not None]
    said = f"a round of {workload.rows} completions takes about {format_seconds(mine)}"
    if not others:
        return EngineChoice(best.candidate, mine, f"{said}, and nothing else was measured.{remark}")
    seconds, second = min(others, key=lambda pair: pair[0])
    if seconds > TIE * mine:
        said += f", {seconds / mine:.1f} times as fast as the next, {second.candidate}."
    else:
        said += f", about as fast as {second.candidate}, with {_tie_break(best, second)}."
    return EngineChoice(best.candidate, mine, said + remark)


def _tie_break(best: EngineMeasurement, other: EngineMeasurement) -> str:
    if best.candidate.threads < other.candidate.threads:
        return "fewer threads"
    return "less rounding" if best.precision == "float32" != other.precision else "one engine less"


def encode_measurements(measured: Sequence[EngineMeasurement]) -> object:
    """As JSON values."""
    return msgspec.to_builtins(measured, str_keys=True)


def decode_measurements(rows: object) -> list[EngineMeasurement]:
    """What `encode` made. Raises ValueError when it is something else."""
    try:
        return msgspec.convert(rows, list[EngineMeasurement], str_keys=True)
    except msgspec.ValidationError as error:
        raise ValueError(f"These are no measurements: {error}.") from error
