"""Rules that an answer keeps, for tasks without answers: how they are read, judged, worded and paid."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.own_tasks import library_in, write_folder

from sapo_desktop.errors import UsageError
from sapo_desktop.services.tasks import review
from sapo_desktop.services.tasks.proposal.draft import ImportOptions, draft_task
from sapo_swarm.scoring.scorer import ScoredTexts, Scorer
from sapo_swarm.tasks.own.folder import read_task
from sapo_swarm.tasks.own.rules import longest_answer, parse_rules, share_kept
from sapo_swarm.tasks.own.spec import BadTask, RulesVerifier, parse_spec
from sapo_swarm.types import TaskRef

SLOGAN = "3 to 8 words; contains {word}; exactly 1 line; ends with !"


@pytest.mark.parametrize(
    ("rules", "answer", "share"),
    [
        (SLOGAN, "A bright lamp for the family!", 1.0),
        (SLOGAN, "A BRIGHT lamp for the family!", 1.0),
        (SLOGAN, "Brighter lamps for all!", 0.75),
        (SLOGAN, "bright", 0.5),
        (SLOGAN, "A bright lamp\nfor the family!", 0.75),
        ("at most 5 characters", "hello", 1.0),
        ("at most 5 characters", "hello!", 0.0),
        ("at least 2 lines", "one\n\ntwo", 1.0),
        ("at least 2 lines", "one\n\n", 0.0),
        ("2 words", "don't well-known", 1.0),
        ("at most 3 words; ends with !", "bright ! ! ! ! ! !", 0.5),
        ("without cheap", "cheaper than ever", 1.0),
        ("without cheap", "Cheap, and good", 0.0),
        ("starts with Dear {word}", "dear  bright one", 1.0),
        ('contains "; "', "one; two", 1.0),
        ("contains ...", "well ... yes", 1.0),
    ],
)
def test_an_answer_earns_the_share_of_the_rules_that_it_keeps(rules: str, answer: str, share: float) -> None:
    assert share_kept(rules, answer, {"word": "bright"}) == share


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ("short", "'short' is no rule"),
        ("9 to 3 words", "No answer can keep"),
        ("at most 0 words", "No answer can keep"),
        (";;", "0 rules"),
        (";".join(["1 word"] * 13), "13 rules"),
        ("contains", "'contains' is no rule"),
    ],
)
def test_what_is_no_rule_is_refused_with_the_ones_that_there_are(rules: str, reason: str) -> None:
    toml = f'name = "t"\n[[verifier]]\nkind = "rules"\nrules = "{rules}"\n'
    with pytest.raises(BadTask, match=reason):
        parse_spec(toml, "task.toml")
    with pytest.raises(ValueError, match=reason):
        parse_rules(rules)


def test_the_longest_answer_that_rules_allow_is_known() -> None:
    assert longest_answer(SLOGAN) == 80
    assert longest_answer("at most 8 words; at most 60 characters") == 60
    assert longest_answer("at least 3 words; ends with !") == 0


async def test_shares_are_paid_in_training_although_only_all_rules_are_right(tmp_path: Path) -> None:
    rows = [{"product": f"lamp {n}", "word": "bright"} for n in range(6)]
    toml = f'prompt = "{{product}}"\nanswer = ""\nextract = "whole"\n[[verifier]]\nkind = "rules"\nrules = "{SLOGAN}"\n'
    write_folder(tmp_path / "slogans", toml, rows[:4], rows[4:])
    with library_in(tmp_path):
        task = read_task(tmp_path / "slogans")
        async with Scorer() as scorer:
            ref = TaskRef("slogans", "own", 0, 0, task.generator)
            scored = await scorer.score(ref, ["A bright lamp for us!", "A lamp for us!", "no"])
            shortcuts = await review.measure_shortcuts(task, scorer, review.train_places(task))
    assert scored.rewards == (1.0, 0.75, 0.25)
    assert (shortcuts.constant[1], shortcuts.truth) == (0.0, None)


def test_rows_without_answers_become_a_task_whose_question_names_the_rules(tmp_path: Path) -> None:
    path = tmp_path / "slogans.csv"
    path.write_text("Product,The word\n" + "".join(f"lamp {n},bright\n" for n in range(40)), "utf-8")
    wishes = ImportOptions(
        prompt="A slogan for a {Product}.", rules="at most 8 words; contains {The word}", base="x.gguf"
    )
    spec = draft_task(path, wishes).task.spec
    assert spec.prompt == "A slogan for a {product}.\nRules: at most 8 words; contains {the_word}"
    assert spec.verifier == (RulesVerifier(rules="at most 8 words; contains {the_word}"),)
    assert (spec.answer, spec.extract, spec.max_new_tokens) == ("", "whole", 56)
    assert spec.columns == ("product", "the_word")


def test_rules_judge_the_whole_answer_whatever_model_is_tried_on_them(tmp_path: Path) -> None:
    """A model that never wrote <answer> would earn nothing, and no example could show it how."""
    path = tmp_path / "products.csv"
    path.write_text("product\n" + "".join(f"lamp {n}\n" for n in range(40)), "utf-8")
    assert draft_task(path, ImportOptions(rules="at most 8 words")).task.spec.extract == "whole"
    assert draft_task(path, ImportOptions(rules="at most 8 words", extract="tags")).task.spec.extract == "tags"
    for base in ("starter", "x.gguf"):
        with pytest.raises(BadTask, match="The task: 'short' is no rule"):
            draft_task(path, ImportOptions(rules="short", base=base))


def test_an_answer_that_was_cut_off_keeps_no_rule(tmp_path: Path) -> None:
    rows = [{"question": f"lamp {n}"} for n in range(6)]
    rules = 'answer = ""\nextract = "whole"\n[[verifier]]\nkind = "rules"\nrules = "ends with !"\n'
    write_folder(tmp_path / "slogans", rules, rows[:4], rows[4:])
    both = ScoredTexts((1.0, 1.0), (True, True))
    with library_in(tmp_path):
        ref = TaskRef("slogans", "own", 0, 0, read_task(tmp_path / "slogans").generator)
        assert both.finished_only(ref, ["stop", "length"]) == ScoredTexts((1.0, 0.0), (True, False))
    library = TaskRef("chain_sum", "starter", 0, 0, "g")
    assert both.finished_only(library, ["stop", "length"]) == both


def test_a_table_of_questions_alone_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "products.csv"
    path.write_text("product\n" + "".join(f"lamp {n}\n" for n in range(40)), "utf-8")
    with pytest.raises(UsageError, match=r"--rules 'at most 8 words; contains \{product\}'"):
        draft_task(path, ImportOptions(base="x.gguf"))
    spec = draft_task(path, ImportOptions(rules="at most 8 words", base="x.gguf")).task.spec
    assert (spec.name, spec.prompt) == (
        "my_products",
        "{product}\nRules: at most 8 words",
    )  # products is a shipped task


def test_rules_that_name_no_column_are_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "products.csv"
    path.write_text("product\n" + "".join(f"lamp {n}\n" for n in range(80)), "utf-8")
    task = draft_task(path, ImportOptions(rules="at most 8 words", base="x.gguf")).task
    (warning,) = [line for line in review.review_rows(task, review.number_rows(task)) if "rule" in line]
    assert "one answer could be right for every row" in warning


def test_the_rules_are_read_in_a_moment_however_hostile() -> None:
    text = '"' * 999 + ";" + "a" * 500
    assert asyncio.run(asyncio.wait_for(asyncio.to_thread(_refused, text), 5))


def _refused(text: str) -> bool:
    try:
        parse_rules(text)
    except ValueError:
        return True
    return False
