"""A question that is proposed for a file says what its verifier wants."""

from __future__ import annotations

import csv
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from tests.support.declared import judge
from tests.support.own_tasks import task_of

from sapo_desktop.errors import UsageError
from sapo_desktop.services.tasks.proposal.columns import best_verifier, date_form, lookalike_answer
from sapo_desktop.services.tasks.proposal.draft import ImportOptions, TaskDraft, draft_task
from sapo_desktop.services.tasks.proposal.wording import SYSTEM, plural_noun
from sapo_swarm.tasks.own.spec import (
    ChoiceVerifier,
    ExactVerifier,
    ItemSet,
    JsonEqual,
    ListVerifier,
    NumberVerifier,
    Verifier,
)

REAL = "SmolLM2-135M-Instruct-Q4_1.gguf"
Pairs = list[tuple[str, str]]


def of(folder: Path, head: tuple[str, str], pairs: Pairs, **wishes: str) -> TaskDraft:
    """The draft for a real model of a table with these columns."""
    with (folder / "table.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([head, *pairs])
    return draft_task(folder / "table.csv", ImportOptions(**({"base": REAL} | wishes)))  # type: ignore[arg-type]


def messages() -> Pairs:
    kinds = {
        "billing": "You charged me twice for the",
        "cancel": "I no longer want the",
        "delivery": "Nobody brought me the",
        "technical": "Nothing moves on the",
    }
    things = ("kettle", "radio", "lamp", "scale", "drone", "router", "watch", "printer", "fan", "heater")
    return [(f"{text} {thing}, order {n}.", kind) for kind, text in kinds.items() for n, thing in enumerate(things)]


def lengths() -> Pairs:
    return [
        (f"Stage {n} of the tour is {n}.5 {unit} long", f"{n}.5 {unit}") for n in range(2, 22) for unit in ("km", "m")
    ]


def addresses() -> Pairs:
    cities = ("Porto", "Graz", "Cork")
    return [
        (f"{n} chairs for Ada in {city}", json.dumps({"city": city, "count": n, "paid": n % 2 == 0}))
        for n in range(2, 20)
        for city in cities
    ]


def baskets() -> Pairs:
    rng, goods = random.Random(1), ("milk", "eggs", "rice", "tea", "salt", "soap")
    picked = [rng.sample(goods, rng.randint(1, 4)) for _ in range(40)]
    return [(f"We are out of {' and '.join(some)} ({n})", ", ".join(some)) for n, some in enumerate(picked)]


def labels() -> Pairs:
    rng, tags = random.Random(2), ("urgent", "refund", "angry", "new", "vip")
    return [(f"Mail number {n}", "; ".join(tag for tag in tags if rng.random() < 0.5) or "none") for n in range(60)]


def appointments() -> Pairs:
    months = ("January", "March", "May", "August", "October")
    return [
        (f"Dentist on {day} {month} next year", f"2027-{2 * at + 1:02}-{day:02}")
        for at, month in enumerate(months)
        for day in range(10, 20)
    ]


def names() -> Pairs:
    return [
        (f"mr {first} {last}", f"{last.upper()}, {first}")
        for first in ("ada", "bo", "cy", "di", "ed")
        for last in ("smith", "jones", "brown", "green")
    ]


def verdicts(found: TaskDraft, truth: str, *answers: str) -> list[float]:
    task = task_of(*found.task.spec.verifier, row={"question": "q", "answer": truth}, extract=found.task.spec.extract)
    return [judge(task, answer, truth) for answer in answers]


def test_a_choice_names_its_options_and_asks_for_one_of_them_alone(tmp_path: Path) -> None:
    spec = of(tmp_path, ("message", "category"), messages()).task.spec
    assert spec.prompt == (
        "Sort this message into one of these categories: billing, cancel, delivery, technical.\n\n"
        "Message: {message}\n\n"
        "Reply with the category only."
    )
    assert (spec.system, spec.extract) == (SYSTEM, "last_line")
    assert spec.verifier == (ChoiceVerifier(options=("billing", "cancel", "delivery", "technical")),)


def test_the_rows_that_are_held_out_have_the_answers_of_all_rows(tmp_path: Path) -> None:
    found = of(tmp_path, ("message", "category"), messages())
    counted = Counter(row["category"] for row in found.task.held_out)
    assert counted == dict.fromkeys(("billing", "cancel", "delivery", "technical"), 2)


def test_the_words_of_the_columns_are_those_of_the_question(tmp_path: Path) -> None:
    levels = [(text, {"billing": "low", "cancel": "high"}.get(kind, "medium")) for text, kind in messages()]
    prompt = of(tmp_path, ("Customer Mail", "Priority"), levels).task.spec.prompt
    assert prompt.startswith(
        "Choose the priority for this customer mail from these: high, low, medium.\n\nCustomer mail: {"
    )
    spam = [(text, "yes" if kind == "cancel" else "no") for text, kind in messages()]
    prompt = of(tmp_path, ("mail", "is_spam"), spam).task.spec.prompt
    assert prompt.startswith("Read this mail and decide: spam, no or yes?")
    assert prompt.endswith("Reply no or yes only.")
    stars = [(f"The room was fine, says guest {n}", str(n % 5 + 1)) for n in range(40)]
    assert "It is one of these: 1, 2, 3, 4, 5." in of(tmp_path, ("review", "stars"), stars).task.spec.prompt
    assert [plural_noun(word) for word in ("category", "class", "box", "tags")] == [
        "categories",
        "classes",
        "boxes",
        "tags",
    ]


@pytest.mark.parametrize("name", ["about", "assigned_to", "Belongs To", "correct", "thema", "next_up", "lbl"])
def test_a_column_whose_name_is_no_noun_is_called_as_a_field_is(tmp_path: Path, name: str) -> None:
    """Nobody says: choose the about for this message."""
    label = name.replace("_", " ").lower()
    prompt = of(tmp_path, ("message", name), messages()).task.spec.prompt
    assert prompt == (
        f'Fill in "{label}" for this message with one of these: billing, cancel, delivery, technical.\n\n'
        "Message: {message}\n\n"
        "Reply with the answer only."
    )


def test_a_name_that_is_no_noun_reads_well_whatever_the_answers_are(tmp_path: Path) -> None:
    def asked(pairs: Pairs, question: str = "note") -> str:
        return of(tmp_path, (question, "sent_over"), pairs).task.spec.prompt

    assert asked(lengths()).startswith('Fill in "sent over" for this note.\n\nNote: {')
    assert asked(appointments()).endswith("Reply only with the answer, in the form YYYY-MM-DD.")
    assert asked(baskets()).startswith('Fill in "sent over" for this note.')
    assert asked(baskets()).endswith("Reply only with the items, separated by commas, in the right order.")
    assert asked(names()).startswith('Rewrite this note. The result is called "sent over".')
    assert asked(messages(), "received").startswith('Fill in "sent over" for this text with one of these: ')
    assert "\n\nReceived: {received}\n\n" in asked(messages(), "received")


def test_a_number_with_a_unit_is_asked_for_in_its_form_and_compared_as_one(tmp_path: Path) -> None:
    found = of(tmp_path, ("note", "distance"), lengths())
    example = found.task.spec.prompt.rpartition("for example ")[2].rstrip(".")
    assert "Reply only with a number and its unit (km or m), for example " in found.task.spec.prompt
    assert example not in {answer for _, answer in lengths()}
    assert found.task.spec.verifier == (NumberVerifier(abs=0.05, units=("km", "m"), need_unit=True),)
    assert verdicts(found, "2.5 km", "2.5 km", "2.50km", "2.5 KM", "It is short.\n2.5 km") == [1.0] * 4
    assert verdicts(found, "2.5 km", "2.5", "2.5 m", "2.6 km", "25 km") == [0.0] * 4


def test_json_is_asked_for_by_its_keys_and_compared_by_value(tmp_path: Path) -> None:
    found = of(tmp_path, ("order", "record"), addresses())
    assert found.task.spec.prompt.startswith("Turn this order into JSON.")
    assert 'the keys "city" (text), "count" (number) and "paid" (true or false).' in found.task.spec.prompt
    assert (found.task.spec.extract, found.task.spec.verifier) == ("json", (JsonEqual(),))
    truth = '{"city": "Graz", "count": 3, "paid": false}'
    assert verdicts(found, truth, 'Here: {"count": 3.0, "paid": false, "city": "Graz"}') == [1.0]
    some = [
        (text, json.dumps({k: v for k, v in json.loads(cell).items() if k != "paid" or v}))
        for text, cell in addresses()
    ]
    assert (
        '"paid" (true or false), without those that have no value'
        in of(tmp_path, ("order", "record"), some).task.spec.prompt
    )


@pytest.mark.parametrize(
    ("pairs", "verifier", "words"),
    [
        (baskets(), ListVerifier(), "separated by commas, in the right order"),
        (labels(), ItemSet(separator=";"), "separated by semicolons, in any order"),
    ],
)
def test_a_list_is_asked_for_with_what_stands_between_its_items(
    tmp_path: Path, pairs: Pairs, verifier: Verifier, words: str
) -> None:
    found = of(tmp_path, ("note", "item"), pairs)
    assert found.task.spec.verifier == (verifier,)
    assert words in found.task.spec.prompt


def test_a_name_with_a_comma_in_it_is_no_list() -> None:
    assert best_verifier([f"Smith {n}, Dr" for n in range(40)])[0] == ExactVerifier()
    assert (
        best_verifier([f"Well, it was fine, thanks, and number {n} was good." for n in range(40)])[0] == ExactVerifier()
    )


@pytest.mark.parametrize(
    ("answers", "form"),
    [
        (["2026-11-28", "2027-01-05"], "YYYY-MM-DD"),
        (["28.11.2026", "05.01.2027"], "DD.MM.YYYY"),
        (["28/11/2026", "05/01/2027"], "DD/MM/YYYY"),
        (["11/28/2026", "01/05/2027"], "MM/DD/YYYY"),
        (["05 March 2026", "7 May 2027"], "D Month YYYY"),
        (["09:30", "17:45"], "HH:MM"),
        (["2026-11-28", "soon"], ""),
        (["12.5", "13.5"], ""),
    ],
)
def test_the_form_of_dates_is_known_by_their_numbers(answers: list[str], form: str) -> None:
    assert date_form(answers) == form


def test_a_date_is_asked_for_in_the_form_of_the_rows(tmp_path: Path) -> None:
    found = of(tmp_path, ("note", "day"), appointments())
    assert found.task.spec.prompt.endswith("Reply only with the day, in the form YYYY-MM-DD.")
    assert verdicts(found, "2027-03-11", "2027-03-11", "11.03.2027") == [1.0, 0.0]


def test_a_rewriting_whose_point_is_the_case_is_judged_by_it(tmp_path: Path) -> None:
    found = of(tmp_path, ("entry", "house_style"), names())
    assert found.task.spec.prompt.startswith("Turn this entry into house style.")
    assert found.task.spec.verifier == (ExactVerifier(),)
    shouted = of(tmp_path, ("entry", "loud"), [(text, text.upper()) for text, _ in names()])
    assert verdicts(shouted, "MR ADA SMITH", "MR ADA  SMITH", "mr ada smith") == [1.0, 0.0]


def test_what_is_a_question_already_is_asked_as_it_is(tmp_path: Path) -> None:
    sums = [(f"Calculate {n} + {n}.", str(2 * n)) for n in range(40)]
    assert of(tmp_path, ("question", "answer"), sums).task.spec.prompt == "{question}\n\nReply with the number only."
    spec = of(tmp_path, ("question", "answer"), sums, base="starter").task.spec
    assert (spec.prompt, spec.system, spec.extract, spec.max_new_tokens) == ("{question}", "", "tags", 0)


def test_a_bundled_starter_is_told_the_options_and_keeps_its_tags(tmp_path: Path) -> None:
    spec = of(tmp_path, ("message", "category"), messages(), base="starter").task.spec
    assert spec.prompt.startswith(
        "Sort this message into one of these categories: billing, cancel, delivery, technical."
    )
    assert (spec.system, spec.extract) == ("", "tags")
    assert "Reply" not in spec.prompt


def test_a_wording_of_the_person_s_own_is_left_alone(tmp_path: Path) -> None:
    spec = of(tmp_path, ("message", "category"), messages(), prompt="Which desk? {message}").task.spec
    assert (spec.prompt, spec.system, spec.extract) == ("Which desk? {message}", SYSTEM, "last_line")
    tagged = of(tmp_path, ("message", "category"), messages(), extract="tags").task.spec
    assert (tagged.system, tagged.extract, tagged.max_new_tokens) == ("", "tags", 0)


def test_an_answer_has_room_and_no_more(tmp_path: Path) -> None:
    assert 20 <= of(tmp_path, ("message", "category"), messages()).task.spec.max_new_tokens <= 32
    thinking = draft_task(tmp_path / "table.csv", ImportOptions(base=REAL, reasons=True)).task.spec
    assert thinking.max_new_tokens == 0


def test_a_made_up_example_is_no_answer_of_the_file() -> None:
    for answers in ([f"{n} km" for n in range(100)], ["1", "2", "3"], ["0.5", "0.25"], ["1,250 €", "17 €"]):
        assert lookalike_answer(answers) not in answers
        assert best_verifier([*answers, lookalike_answer(answers)])[0] == best_verifier(answers)[0]


@pytest.mark.parametrize("good", [0, 1])
def test_of_a_file_whose_lines_are_broken_the_first_one_is_named_with_its_cause(tmp_path: Path, good: int) -> None:
    """Whatever else is said: what is missing stands in the lines that could not be read."""
    path = tmp_path / "broken.jsonl"
    path.write_text('{"question": "a", "answer": "b"}\n' * good + '{"question" "a"}\n' * 3)
    with pytest.raises(UsageError, match=r"^broken.jsonl holds (no usable row|one question)") as refused:
        draft_task(path, ImportOptions(base=REAL))
    assert str(refused.value).endswith(
        f" Row {good + 1}: this line is not valid JSON: character 13, expecting ':' delimiter. 2 more cannot be read either."
    )
