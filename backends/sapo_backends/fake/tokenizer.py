"""A tokenizer without files: bytes, a few whole answers, and control tokens that text can never become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sapo_backends.base import TokenIds

OPEN, CLOSE = "<answer>", "</answer>"
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FRACTIONS = tuple(f"{a}/{b}" for b in range(2, 10) for a in range(1, 10))
ANSWERS = (*WEEKDAYS, "Yes", "No", *FRACTIONS, *(str(n) for n in range(-199, 200)))
PIECES = (OPEN, CLOSE, *ANSWERS)

FIRST_PIECE = 256
OPEN_ID, CLOSE_ID = FIRST_PIECE, FIRST_PIECE + 1
FIRST_ANSWER = FIRST_PIECE + 2
END_OF_PIECES = FIRST_PIECE + len(PIECES)
EOS_ID, PAD_ID, SYSTEM_ID, USER_ID, ASSISTANT_ID = range(END_OF_PIECES, END_OF_PIECES + 5)
VOCABULARY = END_OF_PIECES + 5
ROLE_IDS = {"system": SYSTEM_ID, "user": USER_ID, "assistant": ASSISTANT_ID}


class FakeTokenizer:
    """Greedy longest match over PIECES, single bytes for everything else."""

    def __init__(self) -> None:
        self._ids = {piece.encode(): FIRST_PIECE + i for i, piece in enumerate(PIECES)}
        self._longest = max(map(len, self._ids))

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a completion."""
        return (EOS_ID,)

    @property
    def eot_id(self) -> int:
        """See Tokenizer.eot_id."""
        return EOS_ID

    @property
    def opens_reasoning(self) -> bool:
        """See Tokenizer.opens_reasoning."""
        return False

    def encode_text(self, text: str) -> list[int]:
        """Ids below END_OF_PIECES only."""
        data, ids, at = text.encode("utf-8", "replace"), [], 0
        while at < len(data):
            for length in range(min(self._longest, len(data) - at), 1, -1):
                piece = self._ids.get(data[at : at + length])
                if piece is not None:
                    ids.append(piece)
                    at += length
                    break
            else:
                ids.append(data[at])
                at += 1
        return ids

    def spells_control(self, text: str) -> bool:
        """Never: a control token has no spelling."""
        del text
        return False

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, object]] = ()
    ) -> list[int]:
        """Each message behind its role's control token, then the assistant's. Of tools it knows nothing."""
        del tools
        ids: list[int] = []
        for message in messages:
            ids += [ROLE_IDS[message["role"]], *self.encode_text(message["content"])]
        return [*ids, ASSISTANT_ID]

    def encode_reply(self, text: str) -> list[int]:
        """See Tokenizer.encode_reply; a tool's result is a user's message."""
        return [EOS_ID, USER_ID, *self.encode_text(text), ASSISTANT_ID]

    def decode(self, ids: TokenIds) -> str:
        """See Tokenizer.decode."""
        parts = (bytes([i]) if i < FIRST_PIECE else PIECES[i - FIRST_PIECE].encode() for i in ids if i < END_OF_PIECES)
        return b"".join(parts).decode("utf-8", "replace")
