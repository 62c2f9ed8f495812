"""Accepting a task of a swarm, and what a node says of the ones that it trains on with others or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.own_tasks import library_in, sums, task_of, write_folder

from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.swarms import membership, sharing
from sapo_desktop.services.swarms.membership import active_shared_tasks, offer_status
from sapo_swarm.config import RunConfig
from sapo_swarm.protocol.wire import TaskOffer, build_task_upload, unpack_task
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import OwnTask, read_task
from sapo_swarm.tasks.own.spec import (
    ChoiceVerifier,
    ExactVerifier,
    JsonSchema,
    NumberVerifier,
    RegexVerifier,
    SqlVerifier,
)

SWARM = "a" * 16
CONFIG = RunConfig(tasks=("my_sums", "basic_arithmetic"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "me"))
    found = Home.find()
    with library_in(found.tasks):
        yield found


def offer_of(folder: Path, held_out: bool = False) -> tuple[TaskOffer, OwnTask]:
    upload = build_task_upload(read_task(folder), held_out)
    return upload.offer, unpack_task(upload.offer, upload.packed)


def accepted(home: Home, folder: Path, held_out: bool = False) -> TaskOffer:
    offer, task = offer_of(folder, held_out)
    assert sharing.accept_task(home, SWARM, offer, task) == f"Accepted my_sums, version {offer.hash[:12]}."
    return offer


def test_an_accepted_task_is_trained_on_together_and_says_that_there_is_no_score(home: Home, tmp_path: Path) -> None:
    offer = accepted(home, sums(tmp_path / "my_sums"))
    active, said = active_shared_tasks(CONFIG, SWARM, [offer])
    assert active == {("my_sums", offer.generator)}
    assert "no held-out score" in said[1]
    assert active_shared_tasks(CONFIG, SWARM, None) == (active, [])
    assert active_shared_tasks(CONFIG, "b" * 16, None)[0] == frozenset()
    membership.require_shared(RunConfig(tasks=("my_sums",)), SWARM)
    with pytest.raises(UsageError, match="private"):
        membership.require_shared(RunConfig(tasks=("my_sums",)), "b" * 16)


def test_a_task_that_was_not_accepted_is_told_of_and_not_trained_on(home: Home, tmp_path: Path) -> None:
    offer, _ = offer_of(sums(tmp_path / "my_sums"))
    active, said = active_shared_tasks(RunConfig(tasks=("basic_arithmetic",)), SWARM, [offer])
    assert active == frozenset()
    assert "You did not accept it" in said[0]
    assert "sapo-desktop tasks offered my_sums" in said[0]


def test_a_changed_task_asks_again_and_then_takes_the_place_of_the_old_version(home: Home, tmp_path: Path) -> None:
    accepted(home, sums(tmp_path / "my_sums"))
    newer, task = offer_of(sums(tmp_path / "new" / "my_sums", train=81), True)
    assert offer_status(newer, SWARM) == "changed"
    active, said = active_shared_tasks(CONFIG, SWARM, [newer])
    assert active == frozenset()
    assert "The host changed my_sums" in said[0]
    sharing.accept_task(home, SWARM, newer, task)
    assert offer_status(newer, SWARM) == "accepted"
    assert active_shared_tasks(CONFIG, SWARM, [newer])[0] == {("my_sums", newer.generator)}
    assert len(library.load_task("my_sums").train) == 81
    assert len(library.load_task("my_sums").held_out) == 20


def test_an_accepted_task_that_was_edited_here_is_sent_nowhere(home: Home, tmp_path: Path) -> None:
    offer = accepted(home, sums(tmp_path / "my_sums"))
    with (home.tasks / "my_sums" / "train.jsonl").open("a") as file:
        file.write('{"question": "Calculate 1 + 1.", "answer": "2"}\n')
    library.set_task_folder(home.tasks)
    assert offer_status(offer, SWARM) == "edited"
    active, said = active_shared_tasks(CONFIG, SWARM, [offer])
    assert active == frozenset()
    assert "edited" in said[0]
    with pytest.raises(UsageError, match="would be lost"):
        sharing.accept_task(home, SWARM, *offer_of(tmp_path / "my_sums"))


def test_a_task_of_the_same_name_is_never_overwritten(home: Home, tmp_path: Path) -> None:
    sums(home.tasks / "my_sums", train=7)
    offer, task = offer_of(sums(tmp_path / "my_sums"))
    with pytest.raises(UsageError, match="Rename that folder"):
        sharing.accept_task(home, SWARM, offer, task)
    assert len(read_task(home.tasks / "my_sums").train) == 7
    assert library.shared_in(SWARM) == {}


def test_a_task_of_the_same_name_that_does_not_load_is_another_task(home: Home, tmp_path: Path) -> None:
    offer = accepted(home, sums(tmp_path / "my_sums"))
    (home.tasks / "my_sums" / "train.jsonl").write_text("nothing")
    for known in (True, False):
        if not known:
            library.remove_shared_task(home.tasks, SWARM, "my_sums")
        library.set_task_folder(home.tasks)
        with pytest.raises(UsageError, match="Rename that folder"):
            sharing.accept_task(home, SWARM, offer, read_task(tmp_path / "my_sums"))


def test_the_same_task_that_is_here_already_keeps_its_held_out_rows(home: Home, tmp_path: Path) -> None:
    sums(home.tasks / "my_sums")
    offer = accepted(home, sums(tmp_path / "my_sums"))
    assert len(library.load_task("my_sums").held_out) == 20
    assert active_shared_tasks(CONFIG, SWARM, [offer])[0] == {("my_sums", offer.generator)}


def test_a_task_that_the_swarm_offers_no_more_stays_here(home: Home, tmp_path: Path) -> None:
    accepted(home, sums(tmp_path / "my_sums"))
    active, said = active_shared_tasks(CONFIG, SWARM, [])
    assert active == frozenset()
    assert "nothing of it leaves this machine" in said[0]


def test_the_preview_is_plain_text_with_all_that_decides_a_verdict(tmp_path: Path) -> None:
    evil = "\u202eescape\x1b]52;c;AAAA\x07\nCalculate {question} [/bad]"
    task = task_of(
        ExactVerifier(case=True),
        NumberVerifier(rel=0.5),
        row={"question": "x" * 999, "answer": "a\u200bb"},
        prompt=evil,
        system=evil,
    )
    offer = msgspec.structs.replace(build_task_upload(task_of(ExactVerifier()), False).offer, name="t")
    lines = sharing.preview_offer(offer, task)
    text = "\n".join(lines)
    assert {"Judged by: exact (case = True)", "Judged by: number (rel = 0.5)"} <= set(lines)
    assert "System prompt: ·escape·]52;c;AAAA·⏎Calculate {question} [/bad]" in text
    assert "x… (" in text
    assert not any(char in text for char in "\x1b\x07\u202e\u200b")
    assert all("\n" not in line for line in lines)


def test_nothing_that_decides_a_verdict_is_cut_from_the_preview_and_what_is_not_shown_is_said() -> None:
    options = tuple(f"{n}" * 60 for n in range(10, 74))
    choice, last = (
        (ChoiceVerifier(options=options[:32]), ChoiceVerifier(options=options[32:])),
        RegexVerifier(pattern="[x]" * 160),
    )
    schema = {"description": "x" * 5000, "properties": {"last": {"const": "only this"}}}
    row = {"question": "q" * 999, "answer": "10", "second": "y" * 1500, "query": "select 1"}
    judged = task_of(
        *choice, JsonSchema(), NumberVerifier(column="second"), last, row=row, schema=schema, max_new_tokens=7
    )
    queries = task_of(SqlVerifier(column="query"), row=row, fixture=b"SQLite" * 300)
    offer = msgspec.structs.replace(build_task_upload(task_of(ExactVerifier()), False).offer, name="t")
    text = "\n".join(sharing.preview_offer(offer, judged))
    assert all(repr(option) in text for option in options)
    assert text.count("\nJudged by: ") == 5
    assert f"\nJudged by: regex (pattern = {last.pattern!r})\n" in text
    assert "only this" in text
    assert "Tokens of an answer, at most: 7" in text
    assert f"\n   answer: 10\n   second: {row['second']}" in text
    asked = "\n".join(sharing.preview_offer(offer, queries))
    assert "\n   query: select 1" in asked
    assert "A database of 1,800 bytes, which queries are tried on. What is in it is not shown here." in asked
    assert "sapo-desktop tasks accept t stores it as t/fixture.sqlite" in asked


def test_who_shares_a_task_has_nothing_to_accept(home: Home, tmp_path: Path) -> None:
    offer, task = offer_of(sums(home.tasks / "my_sums"))
    library.add_shared_task(
        home.tasks, library.SharedTask(swarm=SWARM, name="my_sums", digest=offer.hash, held_out=False, mine=True)
    )
    library.set_task_folder(home.tasks)
    assert offer_status(offer, SWARM) == "shared"
    with pytest.raises(UsageError, match="nothing to accept"):
        sharing.accept_task(home, SWARM, offer, task)


def test_a_folder_with_code_cannot_be_offered(home: Home, tmp_path: Path) -> None:
    write_folder(tmp_path / "mine", '[[verifier]]\nkind = "function"\n', [{"question": "q"}], [{"question": "p"}])
    (tmp_path / "mine" / "reward.py").write_text("def reward(completions, **_):\n    return [1.0]\n")
    with pytest.raises(ValueError, match="nothing that runs"):
        offer_of(tmp_path / "mine")
