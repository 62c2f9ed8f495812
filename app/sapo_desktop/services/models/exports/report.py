"""What an export gave: where it lies and how far the library it is for agrees with the engine that trained it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

LIBRARIES = {"transformers": "transformers", "peft": "peft", "llama_cpp": "llama.cpp", "mlx_lm": "mlx_lm"}
"""import name -> what people call it."""
TIES = 10
"""One in so many answers may differ where nothing was rounded: near-ties of two tokens may fall either way."""
KEPT = 0.9
"""Share of identical answers under which a file of few bits is no copy of what was trained."""
UNDONE = (
    "Rounding to so few bits undid part of what was learned. Use --quant q8_0, or of a model made from a GGUF file "
    "--format adapter, which leaves that file as it is."
)
FOLLOWED = 0.6
"""Mean part that is followed from which on one answer of fewer may differ, too."""


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Greedy answers to held-out questions, by the engine that trained the model and by another library.

    prompts: questions that the other library split into the same tokens. identical: answers with the same tokens to
    the end. followed: mean part of an answer before the first other token, in [0, 1]. tokens: longest answer compared.
    """

    library: str
    version: str
    answers: int
    prompts: int
    identical: int
    followed: float
    tokens: int

    def sentence(self) -> str:
        """For people."""
        name = LIBRARIES.get(self.library, self.library)
        told = f"Loaded again by {name} {self.version}: {self.identical} of {self.answers} greedy answers identical"
        if self.identical < self.answers:
            told += f", {100 * self.followed:.0f} % of each followed before the first other token"
        if self.prompts < self.answers:
            told += f"; {self.answers - self.prompts} of {self.answers} questions split into other tokens"
        return f"{told} (at most {self.tokens} tokens each)."

    def wrong(self, lossless: bool) -> bool:
        """Another model, not rounding: other prompts, or other answers in a format that keeps every number."""
        ties = max(self.answers // TIES, self.followed >= FOLLOWED)
        return self.prompts < self.answers or (lossless and self.answers - self.identical > ties)


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """folder: where it lies. size: bytes on disk. agreement: None where it was not checked; unchecked: why. few_bits: the weights
    were rounded to 4 bits, or to those of the base's file."""

    folder: Path
    size: int
    agreement: Agreement | None = None
    unchecked: str = ""
    few_bits: bool = False

    def sentence(self) -> str:
        """How it was checked, for people; and what to do where rounding to few bits undid what was learned."""
        if self.agreement is None:
            return self.unchecked
        lost = self.few_bits and self.agreement.identical < KEPT * self.agreement.answers
        return f"{self.agreement.sentence()} {UNDONE}" if lost else self.agreement.sentence()


def compare(
    library: str,
    version: str,
    ours: Sequence[tuple[Sequence[int], Sequence[int]]],
    theirs: Sequence[tuple[Sequence[int], Sequence[int]]],
    tokens: int,
) -> Agreement:
    """Agreement of (prompt ids, answer ids) pairs, in the same order. An empty answer agrees with an empty one."""
    pairs = [(tuple(a[1]), tuple(b[1])) for a, b in zip(ours, theirs, strict=True)]
    prompts = sum(tuple(a[0]) == tuple(b[0]) for a, b in zip(ours, theirs, strict=True))
    followed = [_followed(a, b) for a, b in pairs]
    return Agreement(
        library=library,
        version=version,
        answers=len(pairs),
        prompts=prompts,
        identical=sum(a == b for a, b in pairs),
        followed=sum(followed) / len(followed) if followed else 1.0,
        tokens=tokens,
    )


def _followed(ours: tuple[int, ...], theirs: tuple[int, ...]) -> float:
    longest = max(len(ours), len(theirs))
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return same / longest if longest else 1.0
