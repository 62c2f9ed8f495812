"""Seconds of a round that was never measured, from the machine's limits: a stated rule, not a measurement.

An engine reaches a share of what the roofline allows (machine_limits). The shares are those of the torch engine on two
cores (docs/benchmarks/engines.md); other machines differ by up to a factor of two.
"""

from __future__ import annotations

from sapo_backends.common import hardware
from sapo_backends.common.round_memory import SHARDED_BELOW, ModelSize
from sapo_backends.measure.choice import Workload
from sapo_backends.measure.machine_limits import Limits, most_generated, most_trained

PRODUCTS, MATRIX_UNIT, SMALL = (0.58, 0.61), (0.35, 0.35), (0.14, 0.4)
"""Shares of the limit that generation of a full batch and the update reach. Where a matrix unit multiplies (AMX, a GPU), it
waits for the rest more of the time; of a model below 100M parameters in bfloat16 most of the work is no product."""
FALLBACK = {"bfloat16": 1.8, "float32": 1.15}
"""Times as long as the own decoder takes transformers (docs/benchmarks/memory.md)."""
STATE_PASSES, STATE_PASSES_BY_KERNELS = 10, 4
"""How often a token in generation goes through the state of a row, at the rate at which memory is read; beside the products."""
RECOMPUTED, TRAINING_PASSES = 1.5, 5
"""Times the products of an update where layers with a state are computed twice, and how often it goes over what such a layer
makes of a token. From two rows of docs/benchmarks/memory.md."""
PROMPT = 64
"""Tokens of a question, read once for its group in generation and once in the update."""


def round_seconds(
    size: ModelSize, workload: Workload, limits: Limits, precision: str, group_size: int, *, fallback: bool = False
) -> float | None:
    """Seconds of a round; None where the limits are not known. fallback: transformers computes it."""
    generated = most_generated(size, workload.rows, limits, precision)
    trained = most_trained(size, limits, precision)
    if generated <= 0 or trained <= 0:
        return None
    generating, training = _shares(size, limits, precision)
    tokens, prompts = workload.rows * workload.new_tokens, workload.rows / group_size * PROMPT
    read = prompts / (3 * trained)  # a forward pass alone
    seconds, update = tokens / (generating * generated) + read / training, 0.0
    if workload.trains:
        update = (tokens + prompts) / (training * trained)
    if not fallback:
        return seconds + update
    seconds += update * (RECOMPUTED if size.recurrent else 1.0)
    return seconds * FALLBACK.get(precision, 1.0) + _of_states(size, tokens, prompts, limits, trains=workload.trains)


def _of_states(size: ModelSize, tokens: int, prompts: float, limits: Limits, *, trains: bool) -> float:
    """Seconds of layers with a state; prompts: their tokens."""
    kernels = limits.device == "cpu" and hardware.c_compiler() is not None
    numbers = (STATE_PASSES_BY_KERNELS if kernels else STATE_PASSES) * size.state * float(tokens)
    if trains:
        made = size.by_kernels if kernels else size.recurrent
        numbers += TRAINING_PASSES * size.layers * made * (tokens + prompts)
    return 4 * numbers / limits.read


def _shares(size: ModelSize, limits: Limits, precision: str) -> tuple[float, float]:
    on_gpu, wide = limits.device != "cpu", precision.endswith("float32")
    if size.parameters < SHARDED_BELOW and (on_gpu or not wide):
        return SMALL
    by_unit = on_gpu or (not wide and hardware.matrix_unit() in ("amx_bf16", "apple"))
    return MATRIX_UNIT if by_unit else PRODUCTS
