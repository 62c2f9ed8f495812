"""An episode played from its beginning: what the environment answers is a pure function of the row and the model's turns.

So nothing lives between two turns: a worker that was killed, a pause or a restart in the middle of an episode loses nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sapo_swarm.scoring.turns.calls import Call, first_call
from sapo_swarm.scoring.turns.environment import Blueprint, reward_of

MAX_REPLY = 4000
"""Characters of an environment's reply that the model gets to read."""


class Step(msgspec.Struct, frozen=True, array_like=True):
    """Where an episode stands after the model's last turn.

    replies: what the environment said to each call, in order. cut: characters of the last turn up to the end of its call, -1
    where it has none (the episode is over). over: no further turn. reward: in [0, 1], where it is over. well_formed: the last
    turn holds an answer.
    """

    replies: tuple[str, ...] = ()
    cut: int = -1
    over: bool = True
    reward: float = 0.0
    well_formed: bool = True


def opened(found: Blueprint, row: Mapping[str, str], prompt: str, seed: str) -> tuple[Any, str]:
    """A new environment, reset with the row; and the prompt, with what reset() said behind it. Raises what the class raises."""
    random.seed(seed)
    environment = found.made()
    said = environment.reset(**row)
    return environment, f"{prompt}\n\n{_text(said)}" if isinstance(said, str) and said else prompt


def play(
    found: Blueprint, row: Mapping[str, str], prompt: str, seed: str, turns: Sequence[str], most: int, final: bool
) -> Step:
    """most: turns of the model, the last of which calls nothing. final: there is no room for another turn.

    The reward is the environment's alone. Raises what the class raises in reset() and get_reward().
    """
    environment, _ = opened(found, row, prompt, seed)
    replies: list[str] = []
    cut, over = -1, True
    for number, text in enumerate(turns, 1):
        call = first_call(text, found) if number < most else None
        if call is None:
            cut, over = -1, True
            break
        replies.append(_answer(environment, call))
        cut, over = call.end, bool(getattr(environment, "done", False))
        if over:
            break
    over = over or final or not turns
    reward = reward_of(found, environment, row, prompt, turns[-1] if turns else "") if over else 0.0
    return Step(tuple(replies), cut, over, reward)


def _answer(environment: Any, call: Call) -> str:
    """The tool's result as text; an error is told to the model, as a result."""
    if call.error:
        return _text(f"error: {call.error}")
    try:
        return _text(getattr(environment, call.name)(**call.arguments))
    except MemoryError:
        raise
    except Exception as error:  # the tool's: the model may do better in its next turn
        return _text(f"error: {error}")


def _text(value: object) -> str:
    if isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            text = str(value)
    return text[:MAX_REPLY].encode("utf-8", "replace").decode("utf-8")
