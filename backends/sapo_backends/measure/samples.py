"""Made-up prompts and completions, so that every engine is measured on the same."""

from __future__ import annotations

from sapo_backends.base import Engine, TrainSample

GROUP = 8
"""Completions of a prompt, where the width allows it."""
QUESTION = "Start with {0}. Add {1}, take away {2} and multiply by {3}. What is the result? Answer with a number."


def prompts(engine: Engine, count: int) -> list[list[int]]:
    """So many made-up questions, encoded."""
    texts = [QUESTION.format(i, 3 * i + 1, 2 * i, i + 2) for i in range(count)]
    return [list(engine.tokenizer.encode_chat([{"role": "user", "content": text}])) for text in texts]


def batch(engine: Engine, groups: int, tokens: int) -> list[TrainSample]:
    """Completions of fixed length, with advantages in turn."""
    usable = min(engine.info.vocabulary, 1000)
    return [
        TrainSample(
            tuple(prompt),
            tuple(10 + (13 * row + 7 * place) % (usable - 10) for place in range(tokens)),
            1.0 if row % 2 else -1.0,
        )
        for prompt in prompts(engine, groups)
        for row in range(GROUP)
    ]
