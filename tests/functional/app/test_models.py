"""Models as people use them from a terminal: made, trained, changed, continued, compared, kept in order. The fake engine."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.node_process import calm, sapo
from tests.support.swarm_process import coordinator

from sapo_desktop.commands.nodes.dashboard import is_new
from sapo_desktop.paths import Home
from sapo_desktop.services.models.pieces import CUT
from sapo_desktop.services.models.shelf import history, keeping, store
from sapo_desktop.services.models.shelf.store import Model
from sapo_swarm.events import CheckpointSaved, RoundFinished, RunStarted
from sapo_swarm.node.journal import read_only

NEW = ("--base", "fake", "--trainer", "fake", "--tasks", "basic_arithmetic", "--local-groups", "4", "--eval-every", "0")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    calm(tmp_path)
    found = Home.find()
    found.prepare()
    return found


def run(home: Home, *arguments: str) -> str:
    """A verb that must succeed; what it printed."""
    done = sapo(home.config, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(home: Home, *arguments: str) -> str:
    """A verb that must not succeed; what it said."""
    done = sapo(home.config, *arguments)
    assert done.returncode in (1, 2), done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr


def sessions(model: Model) -> tuple[RunStarted, ...]:
    return history.load_history(model.folder).sessions


def test_every_change_is_said_and_the_weights_go_on(home: Home) -> None:
    """Settings change, the model does not start over: rounds count on, and each session starts from the last weights."""
    run(home, "new", "kim", *NEW)
    run(home, "node", "kim", "--rounds", "2")
    said = run(home, "node", "kim", "--rounds", "4", "--temperature", "0.8")
    assert "goes on with round 3" in said
    assert "temperature 1.0 -> 0.8" in said
    run(home, "node", "--rounds", "5", "--tasks", "basic_arithmetic,bf")
    model = store.find_model(home, "kim")
    assert [s.changed for s in sessions(model)] == [(), ("temperature 1.0 -> 0.8",), ("tasks +bf",)]
    assert [(s.name, s.base, s.round) for s in sessions(model)] == [
        ("kim", "fake", 0),
        ("kim", "fake", 2),
        ("kim", "fake", 4),
    ]
    assert (model.config.temperature, model.config.tasks) == (0.8, ("basic_arithmetic", "bf"))
    rounds = [e.round for e in read_only(model.folder / "journal.db") if isinstance(e, RoundFinished)]
    assert rounds == [0, 1, 2, 3, 4]
    assert starts_lie_on_one_chain(model)


def starts_lie_on_one_chain(model: Model) -> bool:
    """Every checkpoint names the one before, and every session starts from one of them."""
    events = read_only(model.folder / "journal.db")
    links = [e for e in events if isinstance(e, CheckpointSaved)]
    known = {link.weights for link in links}
    parents = all(link.parent in known for link in links[1:])
    return parents and all(e.weights in known for e in events if isinstance(e, RunStarted))


async def test_joining_and_leaving_a_swarm_continue_the_same_weights(home: Home, tmp_path: Path) -> None:
    run(home, "new", "kim", *NEW)
    run(home, "node", "kim", "--rounds", "2")
    async with coordinator(tmp_path / "host", "--port", "0") as (invite, _):
        run(home, "node", "kim", "--rounds", "4", "--join", invite)
    run(home, "node", "kim", "--rounds", "5", "--silo")
    model = store.find_model(home, "kim")
    assert [s.mode for s in sessions(model)] == ["silo", "swarm", "silo"]
    assert [s.changed for s in sessions(model)] == [(), ("joined the swarm at 127.0.0.1",), ("left the swarm",)]
    assert model.rounds_done == 5
    assert model.config.external_groups == 0, "what a swarm needs is not kept for a model that trains alone"
    assert starts_lie_on_one_chain(model)


def test_a_model_cannot_become_another_one(home: Home) -> None:
    """Another base, method or rank is refused in a sentence with the command that makes such a model."""
    run(home, "new", "kim", *NEW)
    before = (store.find_model(home, "kim").folder / "model.json").read_bytes()
    for flags in (("--model", "starter"), ("--method", "lora"), ("--lora-rank", "8"), ("--precision", "bfloat16")):
        said = refused(home, "node", "kim", "--rounds", "1", *flags)
        assert "Make another model: sapo-desktop new" in said
    assert (store.find_model(home, "kim").folder / "model.json").read_bytes() == before


def test_a_goal_that_is_behind_the_model_says_how_to_count(home: Home) -> None:
    run(home, "new", "kim", *NEW)
    run(home, "node", "kim", "--rounds", "3")
    assert "--rounds 5 trains 2 more" in refused(home, "node", "kim", "--rounds", "2")
    assert "Stopped after round 3" in run(home, "node", "kim", "--rounds", "3"), "a goal that is reached is no error"
    assert store.find_model(home, "kim").config.rounds == 0, "the goal of a session is no setting of the model"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("new", "kim", "--base", "startr"), "Did you mean 'starter'?"),
        (("new", "kim", "--base", "/nowhere"), "There is no model '/nowhere'"),
        (("new", "kim", "--base", "fake", "--trainer", "fak"), "There is no engine 'fak'"),
        (("new", "kim", "--base", "fake", "--trainer", "fake", "--tasks", "arithmetic"), "basic_arithmetic"),
        (("new", "../kim", "--base", "fake", "--trainer", "fake"), "is no name for a model"),
        (("new", "latest", "--base", "fake", "--trainer", "fake"), "has a meaning already"),
        (("node", "kim", "--rounds", "1"), "There is no model yet"),
        (("node", "--silo", "--model", "startr", "--rounds", "1"), "Did you mean 'starter'?"),
    ],
)
def test_what_is_mistyped_leaves_nothing_behind(home: Home, arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(home, *arguments)
    assert list(home.models.iterdir()) == []


def test_a_model_that_does_not_load_never_becomes_the_one_used_last(home: Home) -> None:
    """A base that went away since: the engine refuses, and the default stays with the model that was trained."""
    run(home, "new", "broken", *NEW)
    record = store.find_model(home, "broken")
    run(home, "new", "kim", *NEW)
    run(home, "node", "kim", "--rounds", "1")
    (record.folder / "checkpoints").mkdir()
    torn = record.folder / "checkpoints" / "round-000003"
    torn.mkdir()
    refused(home, "node", "broken", "--rounds", "9")
    assert store.find_model(home).name == "kim"


def test_names_are_told_apart_without_capitals_and_the_nearest_is_named(home: Home) -> None:
    run(home, "new", "kim", *NEW)
    assert "already" in refused(home, "new", "KIM", *NEW)
    assert "Did you mean 'kim'?" in refused(home, "chat", "kin", "--ask", "hello")
    assert "has not been trained yet" in refused(home, "eval", "kim")


def test_models_are_listed_renamed_duplicated_and_deleted(home: Home) -> None:
    run(home, "new", "kim", *NEW)
    run(home, "node", "kim", "--rounds", "2")
    run(home, "models", "rename", "kim", "ada")
    run(home, "models", "duplicate", "ada", "eve")
    run(home, "node", "eve", "--rounds", "3")
    ada, eve = store.find_model(home, "ada"), store.find_model(home, "eve")
    assert (ada.rounds_done, eve.rounds_done) == (2, 3)
    assert ada.record.id != eve.record.id
    assert {s.run_id for s in sessions(eve)} == {eve.record.id}, "the whole history is the copy's own"
    listed = [json.loads(line) for line in run(home, "models", "--json").splitlines()]
    assert [(row["model"], row["rounds"]) for row in listed] == [("eve", 3), ("ada", 2)]
    assert all(row["tokens"] > 0 and row["bytes"] > 0 for row in listed)
    assert "after round 2" in run(home, "models", "show", "eve")
    assert "add --yes" in refused(home, "models", "delete", "eve")
    assert "B are free again" in run(home, "models", "delete", "eve", "--yes")
    assert [m.name for m in store.all_models(home)] == ["ada"]
    assert len(list(home.models.iterdir())) == 1


def test_pruning_keeps_the_newest_and_the_best(home: Home) -> None:
    run(home, "new", "kim", *NEW)
    run(home, "node", "kim", "--rounds", "6")
    newest = store.find_model(home, "kim").checkpoints[-1]
    shutil.copytree(newest, newest.with_name("round-000003"))
    assert "are free again" in run(home, "models", "prune", "kim", "--yes")
    after = store.find_model(home, "kim")
    assert after.rounds_done == 6
    assert [path.name for path in after.checkpoints] == ["round-000006"]
    assert keeping.spare_checkpoints(after, time.time()) == []
    assert "goes on with round 7" in run(home, "node", "kim", "--rounds", "7")


def test_two_models_are_compared_on_the_same_questions(home: Home) -> None:
    run(home, "new", "kim", *NEW)
    run(home, "node", "kim", "--rounds", "1")
    run(home, "models", "duplicate", "kim", "eve")
    told = json.loads(run(home, "compare", "kim", "eve", "--items", "5", "--json"))
    assert told["items"] == 5
    assert told["comparison"]["delta"]["value"] == 0.0, "the same weights answer the same"
    table = run(home, "compare", "kim", "--items", "5")
    assert "Before: base fake" in table
    assert "McNemar p" in table


def test_both_answer_in_a_chat_and_pieces_add_up(home: Home) -> None:
    run(home, "new", "kim", *NEW)
    run(home, "node", "kim", "--rounds", "1")
    whole = run(home, "chat", "kim", "--ask", "What is 2 + 3?").splitlines()
    assert [line.split("|")[0].strip() for line in whole] == ["base", "kim"]
    assert run(home, "chat", "What is 2 + 3?").splitlines() == whole
    assert "in quotes" in refused(home, "chat", "kim", "What", "is")
    pieces = [json.loads(line) for line in run(home, "chat", "kim", "--ask", "What is 2 + 3?", "--json").splitlines()]
    assert pieces[-1] == {"done": True}
    assert {piece["kind"] for piece in pieces[:-1]} == {"answer"}
    last = {piece["of"]: piece["text"] for piece in pieces[:-1]}
    assert [last[0], last[1]] == [line.split("|", 1)[1].removesuffix(CUT).strip() for line in whole]


def test_a_chat_for_programs_ends_an_answer_that_is_stopped_and_answers_what_is_asked_after_that(home: Home) -> None:
    run(home, "new", "kim", *NEW)
    run(home, "node", "kim", "--rounds", "1")
    done = sapo(home.config, "chat", "kim", "--json", typed="/stop\nWhat is 2 + 3?\n/stop\n/stop\nWhat is 4 + 5?\n\n")
    assert done.returncode == 0, done.stderr
    ready, *pieces = map(json.loads, done.stdout.splitlines())
    assert ready["ready"] == ["base", "kim"]
    assert [piece.get("done") for piece in pieces].count(True) == 2
    whole = run(home, "chat", "kim", "--ask", "What is 4 + 5?", "--json").splitlines()
    assert pieces[-len(whole) :] == list(map(json.loads, whole)), "the stops before it do not end it"


def test_a_chat_marks_the_answers_to_held_out_questions_by_their_own_verifier(home: Home) -> None:
    run(home, "new", "kim", *NEW)
    run(home, "node", "kim", "--rounds", "1")
    lines = [json.loads(line) for line in run(home, "chat", "kim", "--questions", "3", "--json").splitlines()]
    asked = [line for line in lines if line.get("kind") == "held_out"]
    marks = [line for line in lines if line.get("kind") == "marks"]
    assert [question["number"] for question in asked] == [1, 2, 3]
    assert all(question["right"] for question in asked)
    counted = [0, 0]
    for question, marked, answers in zip(asked, marks, answers_by_question(lines), strict=True):
        assert set(answers) == {0, 1}
        for of, text in answers.items():
            given = text.partition("<answer>")[2].partition("</answer>")[0].strip()
            assert (marked["rewards"][of] == 1.0) is (given == question["right"]), (text, question)
            counted[of] += given == question["right"]
    assert marks[-1]["right"] == counted
    whole = run(home, "chat", "kim", "--questions", "3")
    assert f"base {counted[0]} of 3 right, kim {counted[1]} of 3 right" in whole
    assert whole.count("Held-out question") == 3
    assert "asks instead of" in refused(home, "chat", "kim", "What is 2 + 3?", "--questions", "2")
    assert "from 1 on" in refused(home, "chat", "kim", "--questions", "0")
    assert "greedily" in refused(home, "chat", "kim", "--questions", "2", "--temperature", "0.5")
    piped = sapo(home.config, "chat", "kim", typed="/next\n\n")
    assert piped.stdout.count("Held-out question 1") == 1
    assert "of 1 right" in piped.stdout, "/next asks the next one in a pipe too"


def answers_by_question(lines: list[dict[str, object]]) -> list[dict[int, str]]:
    """Of each held-out question the last piece of each answer."""
    found: list[dict[int, str]] = []
    for line in lines:
        if line.get("kind") == "held_out":
            found.append({})
        elif line.get("kind") == "answer":
            found[-1][int(str(line["of"]))] = str(line["text"])
    return found


def test_a_damaged_record_is_named_and_a_newer_one_is_left_alone(home: Home) -> None:
    run(home, "new", "kim", *NEW)
    run(home, "new", "eve", *NEW)
    path = store.find_model(home, "kim").folder / "model.json"
    path.write_text('{"format": 99}')
    (found,) = store.unreadable_models(home)
    assert "newer version" in found.sentence
    path.write_text("{")
    (found,) = store.unreadable_models(home)
    assert "damaged" in found.sentence
    assert [m.name for m in store.all_models(home)] == ["eve"]


def test_a_journal_is_checked_and_mended(home: Home) -> None:
    run(home, "new", "kim", *NEW)
    run(home, "node", "kim", "--rounds", "2")
    assert "The journal is sound" in run(home, "runs", "check", "kim")
    journal = store.find_model(home, "kim").folder / "journal.db"
    with closing(sqlite3.connect(journal)) as db, db:
        db.execute("INSERT INTO events (kind, round, body) VALUES ('round', 9, 'nonsense')")
    assert sapo(home.config, "runs", "check", "kim").returncode == 1
    assert "Mended" in run(home, "runs", "check", "kim", "--repair")
    assert "The journal is sound" in run(home, "runs", "check", "kim")
    assert "from the start" in run(home, "runs", "kim")


def test_uninstalling_removes_what_the_app_made_and_nothing_else(home: Home) -> None:
    run(home, "new", "kim", *NEW)
    mine = home.config / "thesis.txt"
    mine.write_text("mine")
    assert "uninstall --data" in refused(home, "uninstall")
    (home.data / "ratings").mkdir()
    told = run(home, "uninstall", "--data", "--yes")
    assert "1 model with weights, history and exports; answers that you rated" in told
    assert "swarm" not in told  # none is hosted here, and none was joined
    assert [path.name for path in home.config.iterdir()] == ["thesis.txt"]


def test_exports_are_no_part_of_the_disk_budget(home: Home) -> None:
    run(home, "new", "kim", *NEW)
    run(home, "node", "kim", "--rounds", "1", "--disk-budget-gb", "0.01")
    exports = store.find_model(home, "kim").folder / "exports"
    exports.mkdir(exist_ok=True)
    with (exports / "large.gguf").open("wb") as file:
        file.truncate(50 * 2**20)
    run(home, "node", "kim", "--rounds", "2", "--disk-budget-gb", "0.01")
    assert store.find_model(home, "kim").rounds_done == 2


def test_the_first_questions_are_not_asked_of_somebody_who_made_a_model_by_a_verb(home: Home) -> None:
    home.settings.unlink(missing_ok=True)
    assert is_new(home)
    run(home, "new", "kim", *NEW)
    home.settings.unlink(missing_ok=True)
    assert not is_new(home)
