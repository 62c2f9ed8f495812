"""Seconds of a round that was never measured, from the machine's limits: a stated rule, not a measurement.

An engine reaches a share of what the roofline allows (machine_limits). The shares are those of the torch engine with
models of 135M to 500M parameters on two cores with AMX; other machines differ by up to a factor of two.
"""

from __future__ import annotations

from sapo_backends.common.round_memory import ModelSize
from sapo_backends.measure.choice import Workload
from sapo_backends.measure.machine_limits import Limits, most_generated, most_trained

GENERATED, TRAINED = 0.35, 0.35
"""Shares of the limit that generation of a full batch and the update reach."""
PROMPT = 64
"""Tokens of a question, read once for its group in generation and once in the update."""


def round_seconds(size: ModelSize, workload: Workload, limits: Limits, precision: str, group_size: int) -> float | None:
    """Seconds of a round; None where the limits are not known."""
    generated = most_generated(size, workload.rows, limits, precision)
    trained = most_trained(size, limits, precision)
    if generated <= 0 or trained <= 0:
        return None
    tokens, prompts = workload.rows * workload.new_tokens, workload.rows / group_size * PROMPT
    read = prompts / (3 * trained)  # a forward pass alone
    seconds = tokens / (GENERATED * generated) + read / TRAINED
    return seconds + (tokens + prompts) / (TRAINED * trained) if workload.trains else seconds
