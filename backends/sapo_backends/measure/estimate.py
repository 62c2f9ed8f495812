"""Seconds of work that was never measured, from the machine's limits: a stated rule, not a measurement.

An engine reaches a share of what the roofline allows (machine_limits). The shares are those of the torch engine on two
cores (docs/benchmarks/engines.md); other machines differ by up to a factor of two.
"""

from __future__ import annotations

from dataclasses import dataclass

from sapo_backends.common import hardware
from sapo_backends.common.round_memory import SHARDED_BELOW, ModelSize
from sapo_backends.measure.choice import Workload
from sapo_backends.measure.machine_limits import Limits, most_generated, most_trained

PRODUCTS, MATRIX_UNIT, SMALL = (0.58, 0.66), (0.35, 0.35), (0.14, 0.4)
"""Shares of the limit that generation of a full batch and the update reach. Where a matrix unit multiplies (AMX, a GPU), it
waits for the rest more of the time; of a model below 100M parameters in bfloat16 most of the work is no product."""
OF_TOKEN, OF_CALL, OF_UPDATE = 0.0015, 0.25, 0.6
"""Seconds beside the products, of models from 100M parameters on a processor without a matrix unit: of each token that is
written (attention, a choice from the vocabulary), of each batch of questions, and of each update (products compiled for its
shape). Fitted on six runs on own tasks (docs/benchmarks/real-tasks.md): short answers and small batches are mostly that."""
LLAMA_CPP = 0.33
"""Share of the limit in float32 that llama.cpp reaches with a file in 4 bits, prompts and answers alike
(docs/benchmarks/gguf-matrix.md)."""
FALLBACK = {"bfloat16": 1.8, "float32": 1.15}
"""Times as long as the own decoder takes transformers (docs/benchmarks/memory.md)."""
STATE_PASSES, STATE_PASSES_BY_KERNELS = 10, 4
"""How often a token in generation goes through the state of a row, at the rate at which memory is read; beside the products."""
RECOMPUTED, TRAINING_PASSES = 1.5, 5
"""Times the products of an update where layers with a state are computed twice, and how often it goes over what such a layer
makes of a token. From two rows of docs/benchmarks/memory.md."""


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a model is on a machine that was not measured with it. precision: what the products are computed in. fallback:
    transformers computes it. generator: "llamacpp" where it writes instead of the trainer, with the file's own few bits."""

    size: ModelSize
    limits: Limits
    precision: str
    fallback: bool = False
    generator: str = ""

    @property
    def known(self) -> bool:
        """The limits are."""
        return most_generated(self.size, 1, self.limits, self.precision) > 0

    def generate(self, work: Workload) -> float:
        """Seconds to read the prompts and write the answers: a step for each token of the longest."""
        size, rows = self.size, max(1, work.rows)
        if self.generator == "llamacpp":  # reads each question whole
            tokens = rows * work.new_tokens + work.groups * work.prompt
            return 2 * size.multiplied * tokens / (LLAMA_CPP * self.limits.multiply["float32"])
        width = max(1, round(rows * work.new_tokens / work.longest))  # rows that ended leave the batch
        rate = _shares(size, self.limits, self.precision)[0] * most_generated(size, width, self.limits, self.precision)
        seconds = rows * work.new_tokens / rate + self._forward(work.prompt_tokens)
        seconds += self._beside(OF_TOKEN * rows * work.new_tokens + OF_CALL)
        if not self.fallback:
            return seconds
        return seconds * self._slower() + self._states(rows * work.new_tokens, work.prompt_tokens, trains=False)

    def update(self, context: float, answers: float) -> float:
        """Seconds to learn from so many tokens of answers behind so many of prompts, which are not predicted themselves."""
        size = self.size
        rate = _shares(size, self.limits, self.precision)[1] * most_trained(size, self.limits, self.precision)
        seconds = (context * self._body + answers) / rate + self._beside(OF_UPDATE)
        if not self.fallback:
            return seconds
        seconds *= RECOMPUTED if size.recurrent else 1.0
        return seconds * self._slower() + self._states(0.0, context + answers, trains=True)

    def _beside(self, seconds: float) -> float:
        small = self.size.parameters < SHARDED_BELOW
        return 0.0 if small or _shares(self.size, self.limits, self.precision) != PRODUCTS else seconds

    @property
    def _body(self) -> float:
        """The share of the products that a token costs of which no next one is predicted: all but the unembedding."""
        return 1.0 - self.size.vocabulary * self.size.hidden / max(1, self.size.multiplied)

    def _forward(self, tokens: float) -> float:
        share, trained = (
            _shares(self.size, self.limits, self.precision)[1],
            most_trained(self.size, self.limits, self.precision),
        )
        return tokens * self._body / (3 * trained * share)

    def _slower(self) -> float:
        return FALLBACK.get(self.precision, 1.0)

    def _states(self, written: float, read: float, *, trains: bool) -> float:
        """Seconds of layers with a state, beside the products."""
        kernels = self.limits.device == "cpu" and hardware.c_compiler() is not None
        numbers = (STATE_PASSES_BY_KERNELS if kernels else STATE_PASSES) * self.size.state * written
        if trains:
            made = self.size.by_kernels if kernels else self.size.recurrent
            numbers += TRAINING_PASSES * self.size.layers * made * read
        return 4 * numbers / self.limits.read


def round_seconds(
    size: ModelSize, work: Workload, limits: Limits, precision: str, *, fallback: bool = False
) -> float | None:
    """Seconds of a round; None where the limits are not known. fallback: transformers computes it."""
    rates = Rates(size, limits, precision, fallback)
    if not rates.known:
        return None
    update = rates.update(work.groups * work.prompt, work.rows * work.new_tokens) if work.trains else 0.0
    return rates.generate(work) + update


def _shares(size: ModelSize, limits: Limits, precision: str) -> tuple[float, float]:
    on_gpu, wide = limits.device != "cpu", precision.endswith("float32")
    if size.parameters < SHARDED_BELOW and (on_gpu or not wide):
        return SMALL
    by_unit = on_gpu or (not wide and hardware.matrix_unit() in ("amx_bf16", "apple"))
    return MATRIX_UNIT if by_unit else PRODUCTS
