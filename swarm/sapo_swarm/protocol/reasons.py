"""Why groups were not taken, in words that need no manual."""

from __future__ import annotations

from collections.abc import Mapping

from sapo_swarm.protocol.safe_text import safe_text

WORDS = {
    "no_signal": "had no rollout better than the rest",
    "stale": "came too late",
    "future": "were dated in the future",
    "duplicate": "were known already",
    "source": "were one more of a node that this sample had already",
    "own": "were this node's own",
    "quota": "came from nodes whose time to be checked was used up",
    "struck": "came from nodes that are heard no more",
    "author": "were signed by somebody else than they say",
    "signature": "had a signature that does not hold",
    "schema": "were not in the form of the protocol",
    "task": "were of a task that is not trained here",
    "seed": "had a seed that training may not use",
    "held_out": "were held-out questions",
    "length": "were too long",
    "too_long": "were too long",
    "no_question": "had a question that cannot be made here",
    "prompt_hash": "had another question than this node makes of it",
    "unscorable": "could not be scored",
    "logprob": "had text that this model would hardly ever write",
    "unlikely": "came from nodes that sent much text that this model would hardly ever write",
    "phrase": "had a phrase that spreads between nodes",
    "repeats": "had the question again before right answers, as too many did lately",
    "other": "were refused for a reason that this version does not know",
}
"""For every reason for which a node (receive) or a coordinator refuses a group."""


def in_words(reasons: Mapping[str, int], whole: int = 0) -> list[str]:
    """ "6 of 8 had no rollout better than the rest", the most frequent first. whole: number of groups, 0 = unknown."""
    ranked = sorted(
        ((number, name) for name, number in reasons.items() if number), key=lambda pair: (-pair[0], pair[1])
    )
    among = f" of {whole:,}" if whole else ""
    return [
        f"{number:,}{among} {WORDS.get(name) or safe_text(name, 40, lines=False).replace('_', ' ')}"
        for number, name in ranked
    ]
