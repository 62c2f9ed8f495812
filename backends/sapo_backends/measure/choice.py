"""Which engine, precision and number of threads to use for a model, chosen from measurements on this machine.

Pure: sapo_backends.measure.probe measures, the app stores the figures. Guessing does not work: with a matrix unit torch
samples 64 rows three times as fast as llama.cpp and one row half as fast; without one the order is reversed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from sapo_backends.common.hardware import is_four_bit

AUTO = "auto"
PAIR_GAIN = 1.2
"""A second engine for generation costs memory, weight transfers and a train-inference mismatch, so it must make the
whole round this many times faster."""
TIE = 1.05
"""Rates within this factor count as equal; then fewer threads win (more is left for the person), then float32 (it
rounds less)."""
TORCH = ("float32", "bfloat16")
"""torch's precisions."""
NEAR = 1.3
"""Candidates within this factor of the fastest are measured twice."""
WIDTHS = (1, 8, 64)
"""Rows decoded at once in the measurement: a chat, a group, a round."""


@dataclass(frozen=True, slots=True)
class EngineCandidate:
    """A configuration that could be used. engine: a registered trainer or a pair. threads 0: the engine does not
    compute on CPU cores."""

    engine: str
    precision: str = AUTO
    threads: int = 0

    def __str__(self) -> str:
        name = self.engine if self.precision == AUTO else f"{self.engine} {self.precision}"
        return f"{name}, {self.threads} thread{'s' * (self.threads > 1)}" if self.threads else name


@dataclass(frozen=True, slots=True)
class EngineMeasurement:
    """What one candidate achieved. Rates are tokens/s.

    generation: by width, after the prompt. first: seconds until the first token of the widest batch. update: completion
    tokens trained on; 0: it does not train. hand_over: seconds per round to pass new weights to a pair's generator.
    memory: the process's peak, in bytes. failure: why there are no figures. computed_by: as the engine reports it, ""
    when it does not.
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
"""Tokens of a question when they were not counted."""


@dataclass(frozen=True, slots=True)
class RoundWorkload:
    """A round: `rows` completions of new_tokens each on average. All are trained on, or none if the node only
    generates.

    prompt: tokens of a question, read once per group of group_size; shared: tokens that all questions begin with, read
    once.
    most: tokens of the longest completion; 0: all are about equally long.
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
        """Number of questions."""
        return self.rows / self.group_size

    @property
    def longest(self) -> float:
        """Tokens of the longest completion."""
        return max(self.most, self.new_tokens, 1.0)

    @property
    def prompt_tokens(self) -> float:
        """Prompt tokens read before the first token is written."""
        return self.shared + self.groups * (self.prompt - self.shared)


@dataclass(frozen=True, slots=True)
class EnginePreference:
    """The person's settings; "auto" and 0 leave a choice open."""

    engine: str = AUTO
    precision: str = AUTO
    threads: int = 0

    def allows(self, candidate: EngineCandidate) -> bool:
        """Whether a candidate agrees with all of the person's settings."""
        return (
            self.engine in (AUTO, candidate.engine)
            and self.precision in (AUTO, candidate.precision)
            and self.threads in (0, candidate.threads)
        )


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The candidate to use, the seconds that its round takes by the measurement, and the reason for choosing it."""

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
    """Candidates worth measuring, trainers first. engines: those that work here. threads: the upper limit.

    apple: the machine has Metal; elsewhere mlx is only for tests. gpu: torch computes on a graphics processor.
    bfloat16: the processor has instructions for it; without them torch takes 14 times as long. trains: if False,
    llama.cpp alone is a candidate too. Pairs are left out: they are tried with the best trainer's settings, see
    `list_pair_candidates`.
    """
    trainer = wanted.engine.rpartition("+")[2]
    if trainer not in (AUTO, "torch", "mlx"):  # a plug-in, or llama.cpp alone: as the person set it
        return [EngineCandidate(wanted.engine, wanted.precision, wanted.threads)] if wanted.engine in engines else []
    candidates: list[EngineCandidate] = []
    if "mlx" in engines and (trainer == "mlx" or (apple and trainer == AUTO)):
        candidates.append(EngineCandidate("mlx", wanted.precision))
    if "torch" in engines and trainer in (AUTO, "torch"):
        counts = [0] if gpu else [wanted.threads] if wanted.threads else _counts(threads)
        # Any other precision is for a pair's generator.
        is_torchs = wanted.precision in TORCH or is_four_bit(wanted.precision)
        kinds = (wanted.precision,) if is_torchs else TORCH if bfloat16 or gpu else TORCH[:1]
        candidates += [EngineCandidate("torch", kind, count) for kind in kinds for count in counts]
    if "llamacpp" in engines and trainer == AUTO and not trains:
        kind = AUTO if wanted.precision in TORCH else wanted.precision
        candidates.append(EngineCandidate("llamacpp", kind, wanted.threads or threads))
    return candidates


def _counts(threads: int) -> list[int]:
    """1, 2, 4, ... and all threads."""
    return sorted({1 << i for i in range(threads.bit_length()) if 1 << i <= threads} | {threads})


def list_pair_candidates(
    engines: Collection[str], measured: Sequence[EngineMeasurement], workload: RoundWorkload, wanted: EnginePreference
) -> list[EngineCandidate]:
    """The pairs worth measuring once their trainers have been: each with the thread count of its trainer's best
    candidate."""
    pairs: list[EngineCandidate] = []
    for name in engines if workload.trains else ():
        generator, plus, trainer = name.partition("+")
        alone = [m for m in measured if m.candidate.engine == trainer]
        best = _fastest(alone, workload)
        if plus and generator in engines and best is not None and wanted.engine in (AUTO, name):
            pairs.append(EngineCandidate(name, wanted.precision, best.candidate.threads))
    return pairs


def find_finalists(measured: Sequence[EngineMeasurement], workload: RoundWorkload) -> list[EngineCandidate]:
    """Candidates so close to the fastest that noise may have decided the order; empty if the fastest has no rival.

    They deserve a second measurement, combined with the first by `merge_measurements`.
    """
    timed = [(seconds, m) for m in measured if (seconds := round_seconds(m, workload)) is not None]
    near = [m.candidate for seconds, m in timed if seconds <= NEAR * min(s for s, _ in timed)]
    return near if len(near) > 1 else []


def merge_measurements(one: EngineMeasurement, two: EngineMeasurement) -> EngineMeasurement:
    """The better figure of each from two measurements of one candidate: other load on the machine only makes figures
    worse."""
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
    """A working candidate's measurements, used to estimate rounds of other shapes than the measured one."""

    measured: EngineMeasurement

    def generate(self, work: RoundWorkload) -> float:
        """Seconds to read the prompts and write the answers, at the rate of the widest measured width that the rows
        fill."""
        rates = {width: rate for width, rate in self.measured.generation.items() if rate > 0}
        width = max((w for w in rates if w <= work.rows), default=min(rates))
        prompts = self.measured.first * work.rows / max(rates)
        return prompts + work.rows * work.new_tokens / rates[width]

    def update(self, context: float, answers: float) -> float:
        """Seconds of an update on `answers` completion tokens after `context` prompt tokens, of which the measured
        update had few."""
        return (context + answers) / self.measured.update + self.measured.hand_over


def round_seconds(measured: EngineMeasurement, workload: RoundWorkload) -> float | None:
    """Seconds of a round, for comparing candidates; None if the measurement failed or the round trains and the
    candidate does not."""
    widths = [w for w in measured.generation if measured.generation[w] > 0]
    if measured.failure or not widths or (workload.trains and measured.update <= 0):
        return None
    rates = MeasuredRates(measured)
    generation = rates.generate(workload)
    return generation + rates.update(0.0, workload.rows * workload.new_tokens) if workload.trains else generation


def format_seconds(seconds: float) -> str:
    """Seconds as text, with one decimal while it is significant."""
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:,.0f} s"


def _fastest(measured: Sequence[EngineMeasurement], workload: RoundWorkload) -> EngineMeasurement | None:
    """The fastest; among those about as fast, the one with the fewest threads, then float32."""
    timed = [(seconds, m) for m in measured if (seconds := round_seconds(m, workload)) is not None]
    if not timed:
        return None
    bound = TIE * min(seconds for seconds, _ in timed)
    near = [(m.candidate.threads, m.precision != "float32", seconds, i) for i, (seconds, m) in enumerate(timed)]
    return timed[min(key for key in near if key[2] <= bound)[3]][1]


def choose_engine(
    measured: Sequence[EngineMeasurement], workload: RoundWorkload, wanted: EnginePreference | None = None
) -> EngineChoice | None:
    """The best candidate that the person's own settings allow; None if none of those was measured.

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
    round_text = f"a round of {workload.rows} completions takes about {format_seconds(mine)}"
    if not others:
        return EngineChoice(best.candidate, mine, f"{round_text}, and nothing else was measured.{remark}")
    seconds, second = min(others, key=lambda pair: pair[0])
    if seconds > TIE * mine:
        round_text += f", {seconds / mine:.1f} times as fast as the next, {second.candidate}."
    else:
        round_text += f", about as fast as {second.candidate}, with {_tie_break(best, second)}."
    return EngineChoice(best.candidate, mine, round_text + remark)


def _tie_break(best: EngineMeasurement, other: EngineMeasurement) -> str:
    if best.candidate.threads < other.candidate.threads:
        return "fewer threads"
    return "less rounding" if best.precision == "float32" != other.precision else "one engine less"


def encode_measurements(measured: Sequence[EngineMeasurement]) -> object:
    """The measurements as JSON values."""
    return msgspec.to_builtins(measured, str_keys=True)


def decode_measurements(rows: object) -> list[EngineMeasurement]:
    """What `encode_measurements` wrote. Raises ValueError for anything else."""
    try:
        return msgspec.convert(rows, list[EngineMeasurement], str_keys=True)
    except msgspec.ValidationError as error:
        raise ValueError(f"These are no measurements: {error}.") from error
