"""Declared verifiers under attack: nothing is right, nothing raises, nothing is changed."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.declared import ADULTS, judge, score
from tests.support.own_tasks import task_of

from sapo_swarm.scoring import declared_verifiers
from sapo_swarm.tasks.own.spec import (
    BadTask,
    ChoiceVerifier,
    ExactVerifier,
    ItemSet,
    JsonEqual,
    JsonSchema,
    ListVerifier,
    NumberVerifier,
    OrderVerifier,
    RegexVerifier,
    SqlVerifier,
    Verifier,
)

ATTACKS: dict[str, str] = {
    "run a command": "__import__('os').system('touch canary')",
    "classes": "().__class__.__base__.__subclasses__()",
    "template": "{question.__class__}",
    "deep list": "[" * 4000 + "]" * 4000,
    "deep object": '{"a":' * 1500 + "1" + "}" * 1500,
    "wide object": "{" + ",".join(f'"{n}":{n}' for n in range(700)) + "}",
    "many digits": "9" * 8000,
    "many exponents": "1e99999",
    "fraction bomb": "1/" + "0" * 100,
    "many commas": "," * 8000,
    "nan": "NaN",
    "infinity": "-Infinity",
    "null byte": "\x00",
    "surrogate": "\ud800",
    "escape": "\x1b]52;c;AAAA\x07",
    "bidi": "\u202etxt",
    "full width": "\uff11\uff12",
    "combining": "a" + "\u0301" * 4000,
    "ligatures": "\ufdfa" * 2500,
    "regex bait": "a" * 5000 + "!",
    "every option": "A B C D",
    "wildcard": ".*",
    "sql write": "drop table people",
    "sql attach": "attach database '/tmp/x' as x",
    "sql pragma": "pragma database_list",
    "sql bomb": "with recursive c(x) as (select 1 union all select x+1 from c) select count(*) from c",
    "sql blob": "select zeroblob(1000000000)",
    "sql join": "select count(*) from " + ",".join(f"people p{n}" for n in range(30)),
    "sql many": f"{ADULTS}; {ADULTS}",
    "sql random": "select name from people where random() or 1",
    "sql extension": "select load_extension('/tmp/x.so')",
    "sql file": "select readfile('/etc/passwd')",
    "tags inside": "<answer><answer>" * 300,
    "empty list": "[]",
    "empty object": "{}",
    "blank": " \n ",
}
KINDS: dict[str, tuple[Verifier, str]] = {
    "exact": (ExactVerifier(), "the truth"),
    "alternatives": (ExactVerifier(alternatives="|"), "the|truth"),
    "number": (NumberVerifier(rel=0.1, units=("km",)), "42"),
    "choice": (ChoiceVerifier(options=("A", "B", "C", "D")), "B"),
    "list": (ListVerifier(), "a,b,c"),
    "set": (ItemSet(), "a,b,c"),
    "order": (OrderVerifier(), "a,b,c"),
    "regex": (RegexVerifier(pattern="(a|b)+c"), "x"),
    "json_schema": (JsonSchema(), "x"),
    "json_equal": (JsonEqual(ordered=False, abs=0.1), '{"a": [1, 2]}'),
    "sql": (SqlVerifier(), ADULTS),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(120)
def test_no_attack_is_right_or_raises(kind: str) -> None:
    part, truth = KINDS[kind]
    for name, attack in ATTACKS.items():
        began = time.process_time()
        assert score(part, attack, truth) == 0.0, name
        assert score(part, attack, truth, partial=True) < 1.0, name
        assert time.process_time() - began < 20, name


@given(st.text(max_size=200))
def test_any_text_has_a_verdict_under_every_verifier(text: str) -> None:
    for part, truth in KINDS.values():
        assert 0.0 <= score(part, text, truth, partial=True) <= 1.0


@pytest.mark.parametrize(
    "attack",
    [
        "delete from people",
        "update people set age = 1",
        "create temp view people as select 'x' name, 99 age",
        "drop table people",
    ],
)
def test_a_query_cannot_change_what_the_next_one_sees(attack: str) -> None:
    assert score(SqlVerifier(), attack, ADULTS) == 0.0
    assert score(SqlVerifier(), f"{ADULTS} -- {attack}", f"{ADULTS} /* {attack} */") == 1.0, "asked anew"


def test_queries_whose_results_are_large_take_little_memory_and_leave_none_taken() -> None:
    """Results of strangers' answers were kept, 90 MB each: 13 of them filled the scorer worker."""
    rows = "with recursive c(n) as (select 1 union all select n + 1 from c where n < 900)"
    assert score(SqlVerifier(), ADULTS, ADULTS) == 1.0
    tracemalloc.start()
    try:
        for n in range(4):
            assert (
                score(SqlVerifier(), f"{rows} select {n} || n || hex(hex(hex(hex('{'a' * 2000}')))) from c", ADULTS)
                == 0.0
            )
        left, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < 2**20
    assert peak < 2**23


def test_a_schema_fetches_nothing() -> None:
    task = task_of(JsonSchema(), schema={"$ref": "http://127.0.0.1:9/schema.json"})
    assert judge(task, "<answer>{}</answer>") == 0.0


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"$dynamicRef": "http://127.0.0.1:9/x"},
        {"$ref": "file:///etc/passwd"},
    ],
)
def test_a_schema_by_which_no_answer_could_be_judged_is_refused_in_a_sentence(schema: object) -> None:
    """Each answer counted as wrong instead, and nobody said why."""
    with pytest.raises(BadTask, match=r"schema\.json: (there is no|a \$ref in it leads back)"):
        declared_verifiers.require_sound_schema(schema)


def test_a_schema_of_a_tree_refers_to_itself() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    declared_verifiers.require_sound_schema(tree)
    assert judge(task_of(JsonSchema(), schema=tree), '<answer>{"left": {"right": {}}}</answer>') == 1.0


def test_a_query_cannot_sort_gigabytes() -> None:
    """Values of a megabyte, made of few letters, took 1.5 GB and four seconds within the steps that a query has."""
    large = f"replace('{'a' * 1000}', 'a', '{'b' * 1000}')"
    rows = f"WITH RECURSIVE c(x, b) AS (SELECT 1, {large} UNION ALL SELECT x + 1, b || x FROM c LIMIT 1500)"
    assert score(SqlVerifier(), f"{rows} SELECT count(*) FROM (SELECT b FROM c ORDER BY b)", "SELECT 1500") == 0.0
    small = large.replace("b" * 1000, "b" * 60)
    assert score(SqlVerifier(), f"SELECT length({small})", "SELECT 60000") == 1.0
