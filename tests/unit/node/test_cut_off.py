"""The sentence about answers that were cut off at the token limit."""

from __future__ import annotations

from sapo_backends.base import Completion
from sapo_swarm.node.round_warnings import SAID_EVERY, cut_off

DONE, CUT = Completion((1, 2), (0.0, 0.0), "stop"), Completion((1, 2), (0.0, 0.0), "length")


def test_more_than_a_fifth_of_cut_off_answers_is_said_now_and_then() -> None:
    (line,) = cut_off([[DONE, CUT], [DONE, CUT]], 0)
    assert line.text.startswith("50 % of the answers were cut off")
    assert cut_off([[DONE, CUT]], SAID_EVERY - 1) == []
    assert cut_off([[DONE, CUT]], SAID_EVERY) != []


def test_few_cut_off_answers_are_not_worth_a_word() -> None:
    assert cut_off([[DONE] * 4 + [CUT]], 0) == []
    assert cut_off([], 0) == []
