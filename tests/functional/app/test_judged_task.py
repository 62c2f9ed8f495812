"""A judged task from rows to rewards: the judge is a real server, the node a real process with the fake engine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.functional.app.test_endpoint import TOKEN, served
from tests.support.judge_server import judge_server
from tests.support.node_process import FAKE, sapo
from tests.support.own_tasks import write_folder

from sapo_desktop.paths import Home
from sapo_desktop.services.tasks.ratings import save_rating
from sapo_swarm.events import GroupRecorded, RoundFinished, RunStarted
from sapo_swarm.node.journal import read_only
from sapo_swarm.scoring.rubric import JudgeAway, JudgeEndpoint, RubricJudge
from sapo_swarm.tasks.own.folder import read_task

JUDGED = 'extract = "whole"\n[[verifier]]\nkind = "judged"\nrubric = "It is short."\n'


def short(_question: str, answer: str) -> str:
    return "YES" if len(answer) % 2 else "NO"


def prepared(home: Path) -> None:
    """A judged task, and thirty ratings of somebody who thinks as the judge does but twice."""
    rows = [{"question": f"Name {n} things.", "answer": ""} for n in range(40)]
    write_folder(home / "data" / "tasks" / "brief", JUDGED, rows[:30], rows[30:])
    place = Home(home, home / "data", home, home, home)
    for n in range(30):
        save_rating(place, "me", f"Say {n}.", "x" * (n + 1), (n % 2 == 0) != (n in (4, 9)))


def answers(messages: list[str]) -> list[str]:
    """What differs between two messages of which only the marks do not."""
    return [message.partition(" question\n")[2].replace(message.split("=== ")[1][:12], "") for message in messages]


async def run(home: Path, *arguments: str) -> tuple[int, str]:
    done = await asyncio.to_thread(sapo, home, *arguments)
    return done.returncode, f"{done.stdout}\n{done.stderr}"


async def test_ratings_may_come_in_a_table_that_a_spreadsheet_saved(tmp_path: Path) -> None:
    """With its separator, its encoding and its capitals; rows that are rated otherwise are left out."""
    prepared(tmp_path)
    lines = [
        "Question;Answer;Rating",
        *(f"Größe {n}?;{'x' * (n % 7 + 1)};{('Good', 'bad ')[n % 7 % 2]}" for n in range(24)),
    ]
    (tmp_path / "mine.csv").write_text("\r\n".join([*lines, "Why?;So;perhaps"]), "cp1252")
    (tmp_path / "bare.csv").write_text("Question,Answer\na,b\n")
    async with judge_server(short) as server:
        verb = ("tasks", "judge", "brief", "--judge-url", server.url, "--judge-model", "m", "--ratings")
        code, said = await run(tmp_path, *verb, str(tmp_path / "mine.csv"))
        assert (code, "agreement       100 %" in said, "on 24 answers" in said) == (0, True, True), said
        assert "mine.csv is not UTF-8 and was read as Windows-1252" in said
        assert any("Größe 1?" in message for message in server.messages)
        said = (await run(tmp_path, *verb, str(tmp_path / "bare.csv")))[1]
        assert "bare.csv has no column 'rating'. It has: question, answer." in said


async def test_a_model_is_trained_on_verdicts_after_the_judge_was_compared_with_the_person(tmp_path: Path) -> None:
    prepared(tmp_path)
    async with judge_server(short, key="secret") as server:
        who = ("--judge-url", server.url, "--judge-model", "m")
        train = ("node", *FAKE, "--tasks", "brief", "--rounds", "2", "--eval-every", "2")
        assert "No judge is set" in (await run(tmp_path, *train))[1]
        assert "never compared with your own ratings" in (await run(tmp_path, *train, *who))[1]
        assert "login --judge" in (await run(tmp_path, "tasks", "judge", "brief", *who))[1]
        (tmp_path / "judge-key.secret").write_text("secret")
        code, said = await run(tmp_path, "tasks", "judge", "brief", *who)
        assert code == 0, said
        assert "agreement       93 % (95 %: 79 to 98)" in said
        assert "Cohen's kappa   0.87 (95 %: 0.69 to 1.00)" in said
        assert "100 tokens a verdict" in said
        assert "never mixed" in (await run(tmp_path, *train, *who, "--tasks", "brief,basic_arithmetic"))[1]
        code, said = await run(tmp_path, *train, *who)
        assert code == 0, said
        assert "on this machine; nothing leaves it" in said
        assert "judged 0." in said
        assert " local " not in said
        server.says = lambda _question, _answer: "NO"
        said = (await run(tmp_path, "tasks", "judge", "brief", *who))[1]
        assert "agrees too little with you" in said
        assert "agrees too little with you" in (await run(tmp_path, *train, *who))[1]
    (folder,) = (tmp_path / "data" / "models").iterdir()
    events = list(read_only(folder / "journal.db"))
    groups = [event.group for event in events if isinstance(event, GroupRecorded)]
    assert groups
    for group in groups:
        assert group.rewards == tuple(float(len(r.text.strip()) % 2) for r in group.rollouts)
    assert all(event.judged for event in events if isinstance(event, RunStarted))
    spent = [event.figures.get("judge_tokens", 0) for event in events if isinstance(event, RoundFinished)]
    assert spent[0] > 0


async def test_a_rubric_makes_a_judged_task_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "taste.csv").write_text("question\nName a fruit.\nName a tree.\nName a bird.\n")
    new = ("tasks", "new", str(tmp_path / "taste.csv"), "--rubric", "It is one word.", "--extract", "whole")
    code, said = await run(tmp_path, *new)
    assert code == 0, said
    assert "Judged by: judged (a model says whether it fulfils your rubric)" in said
    assert "compare the judge with your own ratings" in said
    spec = read_task(tmp_path / "data" / "tasks" / "taste").spec
    assert (spec.rubric, spec.extract) == ("It is one word.", "whole")


async def test_a_model_behind_serve_model_is_asked_as_a_judge() -> None:
    """The tests' model knows no rubric; that it is understood, counted and told of is what counts here."""
    async with served() as client:
        judge = RubricJudge(JudgeEndpoint(client.url, "my-model", TOKEN))
        with pytest.raises(JudgeAway, match="neither YES nor NO"):
            await judge.verdicts([("It is one word.", "Name a fruit.", "apple")])
        assert judge.calls == 2
        assert judge.tokens > 0
        with pytest.raises(JudgeAway, match="login --judge"):
            await RubricJudge(JudgeEndpoint(client.url, "my-model", "wrong")).verdicts([("r", "q", "a")])


async def test_a_judge_that_goes_away_holds_the_round_and_its_rollouts_until_it_is_back(tmp_path: Path) -> None:
    prepared(tmp_path)
    async with judge_server(short) as server:
        who = ("--judge-url", server.url, "--judge-model", "m")
        assert (await run(tmp_path, "tasks", "judge", "brief", *who))[0] == 0
        server.status, server.messages = [400], []
        train = ("node", *FAKE, "--tasks", "brief", "--rounds", "1", "--eval-every", "0", "--json", *who)
        code, said = await run(tmp_path, *train)
        assert code == 0, said
    told = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert any("The round's rollouts are kept" in event.get("text", "") for event in told)
    assert len(server.messages) == len(set(answers(server.messages))), "no answer is judged, nor paid for, twice"
    assert [event["round"] for event in told if event["kind"] == "round"] == [0]
