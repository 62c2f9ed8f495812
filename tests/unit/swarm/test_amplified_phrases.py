"""A text that this node wrote once may be taught by anybody: where that makes it common, the node says so."""

from __future__ import annotations

import pytest
from tests.unit.swarm.test_phrases import teaches

from sapo_swarm.protocol.phrase_watch import BASE_LOCAL, LOCAL_A_ROUND, PhraseWatch
from sapo_swarm.types import Question, TaskRef

QUESTION = Question(TaskRef("basic_arithmetic", "starter", 1), "What is 12 + 5?", "0" * 64)
RARE = "Visit my splendid island. Twelve plus five. <answer>17</answer>"
USUAL = "First take twelve. Then add. <answer>17</answer>"
GROUPS_A_ROUND = 8


def base() -> PhraseWatch:
    """Of its 512 completions one is the rare text."""
    watch = PhraseWatch()
    for number in range(BASE_LOCAL // LOCAL_A_ROUND):
        texts = [RARE if number == k == 3 else USUAL for k in range(LOCAL_A_ROUND)]
        watch.observe_local((text, QUESTION) for text in texts)
    return watch


def train(watch: PhraseWatch, sent: str, rounds: int = 16) -> None:
    """The node comes to write the rare text in four of five completions, while others send groups of one text."""
    for number in range(rounds):
        for _ in range(GROUPS_A_ROUND):
            assert teaches(watch, [sent], QUESTION)
        part = min(0.8, number / 10)
        watch.observe_local((RARE if k < part * LOCAL_A_ROUND else USUAL, QUESTION) for k in range(LOCAL_A_ROUND))


@pytest.mark.parametrize("restarted", [False, True])
def test_a_rare_phrase_of_its_own_that_others_made_common_is_named(restarted: bool) -> None:
    watch = base()
    assert watch.alarm == ""
    if restarted:
        watch = PhraseWatch.unpacked(watch.packed())
    train(watch, RARE)
    assert "“visit my splendid” in" in watch.alarm or "“splendid island" in watch.alarm
    assert "hardly ever did before" in watch.alarm
    assert not watch.drifted, "it is no foreign phrase, and is not refused"


def test_a_way_of_writing_that_a_node_found_by_itself_raises_no_alarm() -> None:
    watch = base()
    train(watch, USUAL)
    assert watch.amplified == {}


def test_what_the_base_wrote_often_is_never_named() -> None:
    watch = base()
    train(watch, USUAL, rounds=40)
    assert not [phrase for phrase in watch.amplified if phrase in USUAL.lower()]
