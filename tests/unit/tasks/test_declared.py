"""Verifiers by declaration: what each calls right, and what none of them does."""

from __future__ import annotations

import json
import re
import sqlite3
import string
from contextlib import nullcontext
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.declared import ADULTS, judge, score
from tests.support.own_tasks import task_of

from sapo_swarm.scoring.declared_verifiers import JUDGES, enclose_answer, extract_answer, require_sound_schema
from sapo_swarm.scoring.verify import score_text
from sapo_swarm.tasks.own.spec import (
    BadTask,
    ChoiceVerifier,
    ExactVerifier,
    FormatVerifier,
    ItemSet,
    JsonEqual,
    JsonSchema,
    LengthVerifier,
    ListVerifier,
    NumberVerifier,
    OrderVerifier,
    RegexVerifier,
    SqlVerifier,
    Verifier,
)
from sapo_swarm.types import AnswerFormat, RewardRule

WORD = st.text(string.ascii_letters + string.digits, min_size=1, max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | st.text(string.printable, max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4),
    max_leaves=8,
)


RIGHT = [
    (ExactVerifier(), "The  Answer", "the answer"),
    (ExactVerifier(), "ﬁne", "fine"),
    (ExactVerifier(alternatives="|"), "colour", "color|colour"),
    (NumberVerifier(), "1,234.50", "1234.5"),
    (NumberVerifier(), "0.1", "1/10"),
    (NumberVerifier(), "−3", "-3"),
    (NumberVerifier(rel=0.01), "99.1", "100"),
    (NumberVerifier(abs=0.3), "1.3", "1"),
    (NumberVerifier(units=("km", "m")), "5 km", "5km"),
    (NumberVerifier(units=("km",)), "5", "5 km"),
    (NumberVerifier(units=("€",)), "€5", "5 €"),
    (NumberVerifier(units=("km",)), "5 km.", "5"),
    (NumberVerifier(units=("min.",)), "5 min.", "5"),
    (NumberVerifier(decimal=","), "1.234,5", "1234,5"),
    (ChoiceVerifier(options=("A", "B")), "(b).", "B"),
    (ChoiceVerifier(options=("A", "B")), '"(b)".', "B"),
    (NumberVerifier(units=("m²", "m⁻²")), "5 m²", "5 m²"),
    (NumberVerifier(units=("m²", "m⁻²")), "5 m⁻²", "5"),
    (ListVerifier(), "red, Blue", '["red", "blue"]'),
    (ItemSet(), "b, a, b", "a,b"),
    (OrderVerifier(), "one,two,three", "one, two, three"),
    (RegexVerifier(pattern=r"[A-Z]{3}-\d{4}"), "ABC-1234", "x"),
    (RegexVerifier(), "ab12", r"[a-z]+\d+"),
    (JsonSchema(), '{"name": "Ann", "age": 3}', "x"),
    (JsonEqual(), '{"b": 1.0, "a": [1, 2]}', '{"a":[1,2],"b":1}'),
    (JsonEqual(ordered=False), "[2, 1]", "[1, 2]"),
    (JsonEqual(ordered=False, abs=0.02), "[10.0, 5.0]", "[9.99, 5.0]"),
    (JsonEqual(ordered=False, abs=0.5), '[{"x": 10.1}, {"x": 3}]', '[{"x": 9.9}, {"x": 3}]'),
    (JsonEqual(ordered=False), '[[3.0, 1], [3, 0], null, "a"]', '["a", null, [1, 3], [0, 3]]'),
    (JsonEqual(ordered=False), "[1e16, 2]", "[2, 10000000000000000]"),
    (SqlVerifier(), "select total(age) from people", "select sum(age) from people"),
    (SqlVerifier(), "SELECT name AS n FROM people WHERE age > 17 ORDER BY age DESC", ADULTS),
    (LengthVerifier(least=2, most=4), "abc", "x"),
    (FormatVerifier(starts="{", ends="}"), "{1}", "x"),
]
WRONG = [
    (ExactVerifier(case=True), "Answer", "answer"),
    (ExactVerifier(alternatives="|"), "", "a|"),
    (ExactVerifier(alternatives="|"), "color|colour", "color|colour"),
    (NumberVerifier(), "12 or 13", "12"),
    (NumberVerifier(), "nan", "1"),
    (NumberVerifier(abs=1e12), "inf", "1"),
    (NumberVerifier(), "1e999999999", "1"),
    (NumberVerifier(), "9" * 5000, "1"),
    (NumberVerifier(), "1_0", "10"),
    (NumberVerifier(), "٣", "3"),
    (NumberVerifier(), "1,23", "123"),
    (NumberVerifier(), "0,125", "125"),
    (NumberVerifier(), "00,125", "125"),
    (NumberVerifier(decimal=","), "0.125", "125"),
    (NumberVerifier(), "10²", "102"),
    (NumberVerifier(units=("m²",)), "10² m²", "102 m²"),
    (NumberVerifier(units=("km", "m")), "5 m", "5 km"),
    (NumberVerifier(rel=0.01), "98.9", "100"),
    (ChoiceVerifier(options=("A", "B")), "A or B", "A"),
    (ChoiceVerifier(options=("A", "B")), "C", "C"),
    (ChoiceVerifier(options=("f", "f'")), "f", "f'"),
    (ListVerifier(), "blue, red", "red, blue"),
    (ListVerifier(), "red", "red, blue"),
    (ListVerifier(), "g, f", "g, f'"),
    (ItemSet(), "a,b,c", "a,b"),
    (OrderVerifier(), "two,one", "one,two"),
    (OrderVerifier(), "one,one,two", "one,two"),
    (RegexVerifier(pattern="ab"), "abc", "x"),
    (JsonSchema(), '{"name": "ann", "age": 3}', "x"),
    (JsonSchema(), '{"name": "Ann", "age": 3, "x": 1}', "x"),
    (JsonEqual(), "[true]", "[1]"),
    (JsonEqual(), '{"a": 1, "a": 2}', '{"a": 2}'),
    (JsonEqual(), "[NaN]", "[1]"),
    (JsonEqual(ordered=False), "[true, 0]", "[1, 0]"),
    (SqlVerifier(), "select name from people union all select name from people", "select name from people"),
    (SqlVerifier(), "select name from people", ADULTS),
    (SqlVerifier(), "select 1 where 0", "select name from people where age > 99"),
    (SqlVerifier(ordered=True), f"{ADULTS} order by name desc", f"{ADULTS} order by name"),
    (LengthVerifier(most=2), "abc", "x"),
    (FormatVerifier(starts="{"), "1}", "x"),
]


@pytest.mark.parametrize(("part", "answer", "truth"), RIGHT)
def test_what_is_right(part: Verifier, answer: str, truth: str) -> None:
    assert score(part, answer, truth) == 1.0


@pytest.mark.parametrize(("part", "answer", "truth"), WRONG)
def test_what_is_wrong(part: Verifier, answer: str, truth: str) -> None:
    assert score(part, answer, truth) == 0.0


@given(WORD, WORD)
def test_exact_is_equality_without_case(answer: str, truth: str) -> None:
    assert score(ExactVerifier(), answer, truth) == float(answer.lower() == truth.lower())


@given(st.integers(-(10**12), 10**12), st.integers(0, 6), st.integers(-3, 3), st.integers(0, 3))
def test_a_number_is_right_exactly_inside_its_tolerance(value: int, places: int, off: int, allowed: int) -> None:
    truth, answer = f"{value}e-{places}", f"{value + off}e-{places}"
    assert score(NumberVerifier(abs=float(f"{allowed}e-{places}")), answer, truth) == float(abs(off) <= allowed)


@given(st.sampled_from("ABCDE"), st.sampled_from("ABCDE"), st.sampled_from(["{}", "({})", "{}.", " {} ", "**{}"]))
def test_a_choice_is_its_letter_in_any_dress_but_stars(chosen: str, truth: str, dress: str) -> None:
    right = chosen == truth and "*" not in dress
    assert score(ChoiceVerifier(options=tuple("ABCDE")), dress.format(chosen.lower()), truth) == float(right)


@given(st.lists(WORD, min_size=1, max_size=6), st.randoms())
def test_lists_sets_and_orders_agree_on_what_a_permutation_is(items: list[str], order: object) -> None:
    mixed = items[:]
    order.shuffle(mixed)  # type: ignore[attr-defined]
    truth, answer = json.dumps(items), ", ".join(mixed)
    lower = [item.lower() for item in items]
    assert score(ItemSet(), answer, truth) == 1.0
    assert score(ListVerifier(), answer, truth) == float([item.lower() for item in mixed] == lower)
    if len(set(lower)) == len(lower):
        assert score(OrderVerifier(), answer, truth) == score(ListVerifier(), answer, truth)


@given(JSON, JSON)
def test_equal_json_is_equal_however_it_is_written(one: object, other: object) -> None:
    written = json.dumps(one, indent=2, sort_keys=True)
    assert score(JsonEqual(), written, json.dumps(one)) == (1.0 if written.strip() else 0.0)
    again = score(JsonEqual(), json.dumps(other), json.dumps(one))
    assert again == float(json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))


@given(st.text(max_size=40))
def test_a_schema_takes_what_the_schema_says(name: str) -> None:
    right = name[:1] in set(string.ascii_uppercase) and name != ""
    assert score(JsonSchema(), json.dumps({"name": name, "age": 1}), "x") == float(right)


@given(st.integers(0, 60))
def test_a_query_is_right_by_its_result(age: int) -> None:
    same = {row for row in (31, 7, 52) if row >= age} == {31, 52}
    assert score(SqlVerifier(), f"select name from people where age >= {age}", ADULTS) == float(same)


@given(st.text(string.ascii_letters, min_size=1, max_size=20), st.integers(0, 20), st.integers(1, 20))
def test_length_counts_characters(answer: str, least: int, most: int) -> None:
    assert score(LengthVerifier(least=least, most=most), answer) == float(least <= len(answer) <= most)


@given(WORD)
def test_format_wants_one_answer_and_nothing_behind_it(answer: str) -> None:
    task = task_of(FormatVerifier())
    assert judge(task, f"so <answer>{answer}</answer>\n") == 1.0
    assert judge(task, f"<answer>{answer}</answer> or so") == 0.0
    assert judge(task, f"<answer>1</answer><answer>{answer}</answer>") == 0.0


@pytest.mark.parametrize(
    ("answer_format", "one", "two"),
    [
        ("tags", "so <answer>#1</answer>", "<answer>#2</answer><answer>#1</answer>"),
        ("boxed", "so $\\boxed{#1}$", "\\boxed{#2} or \\boxed{#1}"),
        ("json", 'so {"answer": "#1"}', '{"answer": "#2"} {"answer": "#1"}'),
    ],
)
def test_format_counts_answers_as_the_run_asks_for_them(answer_format: AnswerFormat, one: str, two: str) -> None:
    task, rule = task_of(FormatVerifier(starts="#")), RewardRule(answer_format=answer_format)
    loose = task_of(FormatVerifier(starts="#", only=False))
    assert score_text(one, "t", task, {"row": {"answer": ""}}, rule)[0] == 1.0
    assert score_text(two, "t", task, {"row": {"answer": ""}}, rule)[0] == 0.0
    assert score_text(two, "t", loose, {"row": {"answer": ""}}, rule)[0] == 1.0
    assert score_text(f"{one} and more text", "t", loose, {"row": {"answer": ""}}, rule)[0] == 0.0


@given(st.text("ab", min_size=1, max_size=12))
def test_a_pattern_must_match_from_end_to_end(answer: str) -> None:
    assert score(RegexVerifier(pattern="a+b?"), answer) == float(
        answer.rstrip("b") != "" and answer.count("b") <= 1 and "ba" not in answer
    )


PARTIAL = [
    (ListVerifier(), "a,x,c", "a,b,c", 2 / 3),
    (ItemSet(), "a,b,x", "a,b,c", 0.5),
    (OrderVerifier(), "a,c,b", "a,b,c", 2 / 3),
    (JsonEqual(), '{"a": 1, "b": 3}', '{"a": 1, "b": 2}', 0.5),
    (ExactVerifier(), "a", "b", 0.0),
]


@pytest.mark.parametrize(("part", "answer", "truth", "credit"), PARTIAL)
def test_partial_credit_is_given_only_when_asked_for(part: Verifier, answer: str, truth: str, credit: float) -> None:
    assert score(part, answer, truth) == 0.0
    assert score(part, answer, truth, partial=True) == pytest.approx(credit)


def test_parts_are_weighed_and_all_must_hold() -> None:
    task = task_of(NumberVerifier(weight=3.0), LengthVerifier(most=2, weight=1.0), row={"question": "q", "answer": "7"})
    assert judge(task, "<answer>7</answer>", "7") == 1.0
    assert judge(task, "<answer>7.0000</answer>", "7") == 0.0
    assert judge(task, "<answer>7.0000</answer>", "7", partial=True) == 0.75


@pytest.mark.parametrize(
    ("how", "text", "answer"),
    [
        ("tags", "<answer>1</answer> <answer> 2 </answer>", "2"),
        ("last_line", "so\nthe answer\n\n", "the answer"),
        ("last_number", "3 and then -1,200.5.", "-1,200.5"),
        ("last_number", "The answer is −5.", "-5"),
        ("last_number", "So x = .5", ".5"),
        ("last_number", "So x = −.5e3.", "-.5e3"),
        ("last_number", "It is...5, No.7", "7"),
        ("json", 'well: [0] {"a": {"b": [1]}} done', '{"a": {"b": [1]}}'),
        ("whole", " all of it ", "all of it"),
        ("tags", "no tags", None),
        ("json", "]]]", None),
        ("last_number", "none", None),
        ("whole", "  ", None),
    ],
)
def test_where_an_answer_stands(how: str, text: str, answer: str | None) -> None:
    assert extract_answer(how, text) == answer  # type: ignore[arg-type]


@given(st.sampled_from(["tags", "last_line", "whole"]), st.text(string.ascii_letters, min_size=1))
def test_an_enclosed_answer_is_found_again(how: str, answer: str) -> None:
    assert extract_answer(how, enclose_answer(how, answer)) == answer  # type: ignore[arg-type]


def test_every_kind_that_can_be_declared_has_a_judge() -> None:
    assert set(JUDGES) == set(get_args(Verifier))


def test_a_fixture_in_wal_mode_answers_its_own_queries(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "fixture.sqlite")
    connection.executescript("pragma journal_mode = wal; create table a(n); insert into a values (7);")
    connection.close()
    row = {"question": "q", "answer": "select n from a"}
    task = task_of(SqlVerifier(), row=row, fixture=(tmp_path / "fixture.sqlite").read_bytes())
    assert judge(task, "<answer>select max(n) from a</answer>", row["answer"]) == 1.0


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ({"type": "objekt"}, "'objekt' is not valid"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "there is no '#/$defs/none' in it"),
        ({"$ref": "https://example.com/a.json"}, "nothing is fetched"),
        ({"$id": "https://example.com/a", "$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n"}, ""),
        ({"enum": [{"$ref": "#/none"}], "properties": {"$ref": {"type": "string"}}}, ""),
    ],
)
def test_a_schema_that_nothing_can_fit_is_refused(schema: object, sentence: str) -> None:
    with pytest.raises(BadTask, match=re.escape(sentence)) if sentence else nullcontext():
        require_sound_schema(schema)
