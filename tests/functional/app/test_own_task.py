"""A person's own file becomes a task, and a node trains on it: real processes, no code."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tests.support.environments import TWO_SUMS
from tests.support.node_process import sapo
from tests.support.own_tasks import library_in, sums, write_folder
from tests.support.swarm_process import coordinator, journal

from sapo_desktop.paths import Home
from sapo_desktop.services import first_run
from sapo_desktop.services.first_questions import FirstRunAnswers
from sapo_desktop.services.models.shelf import store
from sapo_swarm.evaluation import regular_items
from sapo_swarm.events import Evaluated, GroupRecorded, RoundFinished, RunStarted

FAKE = ("--silo", "--trainer", "fake", "--model", "fake", "--rounds", "3", "--eval-every", "3")


def messy(path: Path) -> Path:
    """A file as it comes out of a spreadsheet and many hands."""
    lines = ["Question;Answer;note"] + [f"Calculate {n} + {n}.;{2 * n};x" for n in range(300)]
    for number, line in {
        10: "Calculate 1 + 9.;;x",
        20: '"He said ""hi"": 1 + 19.";20;x',
        30: "x" * 20_000 + ";1;x",
        40: "Calculate 1 + 39.;about forty;x",
        50: "Calculate 1\x1b[2J + 49.;50;x",
        60: '"Calculate 1 + 59.;60;x',
        70: "Calculate 1 + 69.;70",
        80: lines[90],
    }.items():
        lines[number - 1] = line
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    return path


def test_a_messy_file_becomes_a_task_and_every_problem_a_sentence_with_its_row(tmp_path: Path) -> None:
    done = sapo(
        tmp_path / "home", "tasks", "new", str(messy(tmp_path / "my sums.csv")), "--model", "starter-1m", timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "Task my_sums: " in done.stdout
    assert "Judged by: number (the answers are whole numbers)" in done.stdout
    for row, sentence in {
        10: "answer is empty or missing",
        30: "column question has 20,000 characters",
        50: "column question holds the control character U+001B",
        60: "a quote is opened and not closed",
        70: "2 cells under 3 headings",
    }.items():
        assert f"- Left out. Row {row}: {sentence}" in done.stdout, done.stdout
    assert "(row 40)" in done.stdout
    assert "row 80 and row 91" in done.stdout
    assert "to 64 training questions)" in done.stdout
    assert "\x1b" not in done.stdout
    stored = tmp_path / "home" / "data" / "tasks" / "my_sums"
    assert sorted(path.name for path in stored.iterdir()) == ["heldout.jsonl", "task.toml", "train.jsonl"]
    again = sapo(tmp_path / "home", "tasks", "new", str(tmp_path / "my sums.csv"))
    assert again.returncode == 2
    assert "--replace" in again.stderr


def test_a_node_trains_on_an_own_task_and_evaluates_its_held_out_rows(tmp_path: Path) -> None:
    sums(tmp_path / "data" / "tasks" / "my_sums")
    done = sapo(tmp_path, "node", *FAKE, "--tasks", "my_sums", "--keep-groups", "0", timeout=120)
    assert done.returncode == 0, done.stderr
    events = journal(tmp_path)
    assert sum(isinstance(event, RoundFinished) for event in events) == 3
    last = [event for event in events if isinstance(event, Evaluated)][-1]
    assert [(score.task, score.items) for score in last.tasks] == [("my_sums", 20)], "all that are held out"
    lines = (tmp_path / "data" / "tasks" / "my_sums" / "heldout.jsonl").read_text().splitlines()
    held_out = {json.loads(line)["question"] for line in lines}
    trained = {event.group.question.prompt for event in events if isinstance(event, GroupRecorded)}
    assert trained
    assert not trained & held_out


def test_own_tasks_are_listed_shown_and_checked(tmp_path: Path) -> None:
    sums(tmp_path / "data" / "tasks" / "my_sums")
    (tmp_path / "data" / "tasks" / "broken").mkdir()
    (tmp_path / "data" / "tasks" / "broken" / "task.toml").write_text("name = ")
    listed = sapo(tmp_path, "tasks").stdout
    assert "own: 80 rows, 20 held out." in listed
    assert "not valid TOML" in listed
    shown = sapo(tmp_path, "tasks", "show", "my_sums").stdout
    assert "1. Calculate 0 + 0." in shown
    assert "Always answering" in shown
    assert "The answer of another row" in shown
    checked = sapo(tmp_path, "tasks", "check", str(tmp_path / "data" / "tasks" / "my_sums"), "--no-model")
    assert checked.returncode == 1
    assert "Only 20 held-out rows" in checked.stdout
    assert "Calculate" in sapo(tmp_path, "tasks", "my_sums").stdout
    assert "You have: broken, my_sums." in sapo(tmp_path, "tasks", "show", "other").stderr
    assert sapo(tmp_path, "new", "mine", "--base", "starter-1m").returncode == 0
    trained = sapo(tmp_path, "tasks", "check", "my_sums", "--model", "mine")
    assert (trained.returncode, trained.stderr.count("sapo-desktop eval mine")) == (2, 1)


def test_code_runs_after_one_explicit_yes_and_never_from_a_folder_elsewhere(tmp_path: Path) -> None:
    toml = 'extract = "whole"\n[[verifier]]\nkind = "function"\n'
    for folder in (tmp_path / "data" / "tasks" / "mine", tmp_path / "bundle" / "theirs"):
        write_folder(folder, toml, [{"question": "q"}], [{"question": "p"}])
        (folder / "reward.py").write_text("def reward(completions, **_):\n    return [1.0]\n")
    code = (tmp_path / "bundle" / "theirs" / "reward.py").read_bytes()
    (tmp_path / "bundle" / "allowed-code.txt").write_text(hashlib.sha256(code).hexdigest())
    refused = sapo(tmp_path, "node", *FAKE, "--tasks", "mine")
    assert refused.returncode == 2
    assert "--allow-code" in refused.stderr
    brought = sapo(tmp_path, "tasks", "check", str(tmp_path / "bundle" / "theirs"), "--no-model")
    assert brought.returncode == 2
    assert "brings Python code" in brought.stderr
    allowed = sapo(tmp_path, "tasks", "check", "mine", "--no-model", "--allow-code")
    assert "'0' would be right on 100.0 %" in allowed.stdout, allowed.stdout + allowed.stderr


def test_a_file_of_rows_and_an_environment_become_a_task_of_turns(tmp_path: Path) -> None:
    """Stored, but nothing of it runs before the yes; then it is looked over and trained on, turn by turn."""
    rows = [
        {"question": f"Calculate {n} + 12.", "first": n + 12, "second": f"{n} + 39", "answer": n} for n in range(40)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "sums.py").write_text(TWO_SUMS)
    home = tmp_path / "home"
    made = sapo(home, "tasks", "new", str(tmp_path / "rows.jsonl"), "--environment", str(tmp_path / "sums.py"))
    assert made.returncode == 0, made.stderr
    assert "8 turns at most, with tools. Rollouts of several turns stay on this machine" in made.stdout
    assert "read " in made.stdout
    assert "then: sapo-desktop tasks check rows --allow-code" in made.stdout
    assert "never runs before you said yes" in sapo(home, "node", *FAKE, "--tasks", "rows").stderr
    checked = sapo(home, "tasks", "check", "rows", "--allow-code", "--no-model")
    assert "environment.py is run as it is now" in checked.stdout
    done = sapo(home, "node", *FAKE, "--tasks", "rows", timeout=120)
    assert done.returncode == 0, done.stderr
    groups = [event for event in journal(home) if isinstance(event, GroupRecorded)]
    assert any(turn.environment for event in groups for rollout in event.group.rollouts for turn in rollout.turns)


def test_rows_and_a_reward_function_of_trl_s_shape_become_a_task(tmp_path: Path) -> None:
    """Prompts without answers are enough; a name of its own and columns are found by the function's arguments."""
    (tmp_path / "rows.csv").write_text("prompt,limit\n" + "".join(f"Say {n} words.,{n}\n" for n in range(40)))
    (tmp_path / "short.py").write_text(
        "def short_enough(completions, limit, **kwargs):\n"
        "    return [float(len(c.split()) <= int(n)) for c, n in zip(completions, limit)]\n"
    )
    home, rows = tmp_path / "home", str(tmp_path / "rows.csv")
    twice = sapo(home, "tasks", "new", rows, "--reward", str(tmp_path / "short.py"), "--rubric", "Short.")
    assert (twice.returncode, "Say one of" in twice.stderr) == (2, True)
    made = sapo(home, "tasks", "new", rows, "--reward", str(tmp_path / "short.py"))
    assert made.returncode == 0, made.stderr
    assert "Judged by: function (it gives the reward); the answer is taken from: whole." in made.stdout
    assert "then: sapo-desktop tasks check rows --allow-code" in made.stdout
    checked = sapo(home, "tasks", "check", "rows", "--allow-code", "--no-model")
    assert "reward.py is run as it is now" in checked.stdout, checked.stderr
    done = sapo(home, "node", *FAKE, "--tasks", "rows", timeout=120)
    assert done.returncode == 0, done.stderr
    assert any(isinstance(event, GroupRecorded) for event in journal(home))


def test_an_example_is_taken_by_its_name_and_again_over_an_edited_one_which_is_kept(tmp_path: Path) -> None:
    assert "unit_conversion" in sapo(tmp_path, "tasks", "examples").stdout
    done = sapo(tmp_path, "tasks", "new", "unit_conversion", "--no-model")
    assert done.returncode == 0, done.stderr
    spec = tmp_path / "data" / "tasks" / "unit_conversion" / "task.toml"
    spec.write_text(spec.read_text().replace('prompt = "', 'prompt = "Please: '))
    again = sapo(tmp_path, "tasks", "new", "unit_conversion", "--no-model", "--replace")
    kept = tmp_path / "data" / "replaced" / "tasks" / "unit_conversion"
    assert f"The task of that name that was here is kept in {kept} until" in again.stdout, again.stderr
    assert 'prompt = "Please: ' in (kept / "task.toml").read_text()


def test_a_task_is_deleted_after_a_yes_unless_a_model_is_trained_on_it(tmp_path: Path) -> None:
    sums(tmp_path / "data" / "tasks" / "my_sums")
    assert sapo(tmp_path, "new", "mine", "--base", "starter-1m", "--tasks", "my_sums").returncode == 0
    used = sapo(tmp_path, "tasks", "delete", "my_sums", "--yes")
    assert (used.returncode, "in use by the model mine" in used.stderr) == (2, True)
    asked = sapo(tmp_path, "tasks", "delete", "my_sums", "--even-in-use")
    assert (asked.returncode, "Nobody can answer here: add --yes." in asked.stderr) == (1, True)
    assert (tmp_path / "data" / "tasks" / "my_sums").exists()
    done = sapo(tmp_path, "tasks", "delete", "--even-in-use", "--yes", "my_sums")
    assert (done.returncode, "Deleted the task my_sums." in done.stdout) == (0, True), done.stderr
    assert not list((tmp_path / "data" / "tasks").glob("*/"))


def test_what_is_wrong_with_a_task_is_said_before_a_run_begins(tmp_path: Path) -> None:
    folder = sums(tmp_path / "data" / "tasks" / "my_sums")
    (folder / "task.toml").write_text('name = "my_sums"\n[[verifier]]\nkind = "numbr"\n')
    done = sapo(tmp_path, "node", *FAKE, "--tasks", "my_sums")
    assert done.returncode == 2
    assert "numbr" in done.stderr
    models = tmp_path / "data" / "models"
    assert not (models.exists() and list(models.iterdir()))


def test_a_task_that_was_edited_is_a_mark_in_the_models_history_and_a_warning_of_eval(tmp_path: Path) -> None:
    folder = sums(tmp_path / "data" / "tasks" / "my_sums")
    train = ("node", *FAKE, "--tasks", "my_sums", "--rounds")
    for rounds in ("1", "2"):
        assert sapo(tmp_path, *train, rounds).returncode == 0
    with (folder / "train.jsonl").open("a") as file:
        file.write('{"question": "Calculate 7 + 7.", "answer": "14"}\n')
    assert sapo(tmp_path, *train, "3").returncode == 0
    opened = [event for event in journal(tmp_path) if isinstance(event, RunStarted)]
    assert [event.changed for event in opened] == [(), (), ("task my_sums was edited",)]
    with (folder / "heldout.jsonl").open("a") as file:
        file.write('{"question": "Calculate 8 + 8.", "answer": "16"}\n')
    assert (
        "Careful: Task my_sums was edited since my-model was trained on it"
        in sapo(tmp_path, "eval", "--items", "2").stderr
    )


async def test_a_node_with_nothing_but_own_tasks_joins_no_swarm(tmp_path: Path) -> None:
    import asyncio

    sums(tmp_path / "n" / "data" / "tasks" / "my_sums")
    async with coordinator(tmp_path / "c", "--port", "0") as (invite, _):
        arguments = ("node", "--join", invite, *FAKE[1:], "--tasks", "my_sums")
        done = await asyncio.to_thread(sapo, tmp_path / "n", *arguments)
    assert done.returncode == 2
    assert "private" in done.stderr


def test_a_spreadsheet_of_codes_is_judged_to_the_letter_and_one_of_prices_says_how_it_is_read(tmp_path: Path) -> None:
    codes = "".join(f"Which code has part {n}?;47{n}{'AB'[n % 2]}\r\n" for n in range(11, 60))
    (tmp_path / "my-codes.csv").write_bytes(f"\ufeffsep=;\r\nquestion;answer\r\n{codes}".encode())
    done = sapo(tmp_path / "home", "tasks", "new", str(tmp_path / "my-codes.csv"), "--no-model", timeout=200)
    assert "Judged by: exact (text, whatever its case and spacing)" in done.stdout, done.stderr
    prices = "".join(f"{n} 个苹果多少钱?;{n},250 €;Klasse {n}\r\n" for n in range(1, 40))
    (tmp_path / "价格.csv").write_bytes(f"问题;答案;level\r\n{prices}".encode())
    where = ("--question", "问题", "--answer", "答案", "--no-model")
    done = sapo(tmp_path / "home", "tasks", "new", str(tmp_path / "价格.csv"), *where, timeout=200)
    assert "Task my_task: " in done.stdout, done.stderr
    assert "Judged by: number, units € (the answers are numbers with a unit; takes the comma in 1,250" in done.stdout
    assert "No levels of difficulty: Column level has 39 different words" in done.stdout
    assert "judged wrong" not in done.stdout


def test_a_wording_without_a_column_is_refused_with_that_reason_and_nothing_is_stored(tmp_path: Path) -> None:
    """Nor one that is too long, nor any task while the settings cannot be read; a good task of that name stays."""
    rows = "question,answer\n" + "".join(f"q{n},a{n}\n" for n in range(60))
    (tmp_path / "t.csv").write_text(rows)
    (tmp_path / "h.csv").write_text(rows.replace("q", "other q"))
    folder = sums(tmp_path / "home" / "data" / "tasks" / "good").parent
    before = {path: path.read_bytes() for path in sorted(folder.rglob("*.*"))}
    for name, prompt, held_out in (
        ("nh", "no hole", True),
        ("t", "no hole", False),
        ("good", "{question}" * 401, True),
    ):
        extra = ("--heldout", str(tmp_path / "h.csv")) if held_out else ()
        made = ("tasks", "new", str(tmp_path / "t.csv"), "--name", name, "--prompt", prompt, "--replace", *extra)
        done = sapo(tmp_path / "home", *made)
        why = "The task: the prompt names no column" if "no" in prompt else "The task: Expected `str` of length <= 4000"
        assert (done.returncode, why in done.stderr) == (2, True), done.stderr
    (tmp_path / "home" / "config.toml").write_text("run = ")
    done = sapo(tmp_path / "home", "tasks", "new", str(tmp_path / "t.csv"), "--no-model")
    assert (done.returncode, "config.toml" in done.stderr) == (2, True), done.stderr
    assert {path: path.read_bytes() for path in sorted(folder.rglob("*.*"))} == before


def test_new_name_tasks_own_has_the_settings_that_the_wizard_gives(home: Home) -> None:
    """What was typed stays, and so does a model of the app's tasks."""
    rows = [{"question": f"Calculate {n} + 1.", "answer": n + 1, "level": n % 2} for n in range(60)]
    write_folder(home.tasks / "lv", 'difficulty = "level"\n', rows[:40], rows[40:])
    assert sapo(home.config, "new", "typed", "--tasks", "lv").returncode == 0
    with library_in(home.tasks):
        assert first_run.first_model(FirstRunAnswers(task="lv"), home) == ["lv"]
    made = store.find_model(home, "typed").config
    assert made == store.find_model(home, "lv").config
    with library_in(home.tasks):
        assert (made.curriculum, regular_items(made)) == ("presets", 20), "all of its held-out rows"
    own = ("--curriculum", "uniform", "--eval-items", "5", "--max-new-tokens", "7")
    assert sapo(home.config, "new", "mine", "--tasks", "lv", *own).returncode == 0
    kept = store.find_model(home, "mine").config
    assert (kept.curriculum, kept.eval_items, kept.max_new_tokens) == ("uniform", 5, 7)
    assert sapo(home.config, "new", "both", "--tasks", "lv,bf").returncode == 0
    assert store.find_model(home, "both").config.curriculum == "uniform"
