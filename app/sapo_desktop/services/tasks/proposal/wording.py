"""The wording of the questions in a file, so that the question says what the verifier wants, and whether an answer has that
form."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from sapo_desktop.services.tasks.proposal.columns import ASKING, QUESTIONS, date_form, few_numbers, lookalike_answer
from sapo_swarm.scoring.declared_verifiers import (
    extract_answer,
    normalised_label,
    parse_json,
    parse_measure,
    split_items,
)
from sapo_swarm.scoring.messages import cap_completion
from sapo_swarm.scoring.prompts import after_reasoning
from sapo_swarm.tasks.own.folder import OwnTask
from sapo_swarm.tasks.own.rules import longest_answer
from sapo_swarm.tasks.own.spec import (
    ChoiceVerifier,
    ExactVerifier,
    Extract,
    ItemSet,
    JsonEqual,
    ListVerifier,
    NumberVerifier,
    OrderVerifier,
    RulesVerifier,
    Verifier,
    truth_column,
)
from sapo_swarm.types import AnswerFormat

# Whether an answer has the form of a right one, right or not: one of the options, a number, JSON with the truth's keys.
#
# This separates two things a model has to learn: writing answers in the wanted form, and finding the right ones.

LONGER = 2
"""How many times as long as the right answer, plus ROOM characters, a text may be to count as an answer."""
ROOM = 20


def written_answer_of(task: OwnTask, text: str, answer_format: AnswerFormat, in_reasoning: bool = False) -> str:
    """The answer that is judged in a completion of this task; "" where it has none."""
    return extract_answer(task.spec.extract, after_reasoning(cap_completion(text), in_reasoning), answer_format) or ""


def has_form(task: OwnTask, row: Mapping[str, str], answer: str) -> bool:
    """Whether the answer has the right form for every verifier that knows the form. row: with the right answer."""
    return bool(answer) and all(
        _fits(part, answer, row.get(truth_column(task.spec, part), "")) for part in task.spec.verifier
    )


def _fits(part: Verifier, answer: str, truth: str) -> bool:
    if isinstance(part, ChoiceVerifier) and part.options:
        return normalised_label(answer) in {normalised_label(option) for option in part.options}
    if isinstance(part, NumberVerifier):
        value, unit = parse_measure(answer, part)
        return value is not None and (bool(unit) or not part.need_unit)
    if isinstance(part, JsonEqual):
        try:
            given_json, true_json = parse_json(answer), parse_json(truth)
        except (ValueError, RecursionError):
            return False
        return type(given_json) is type(true_json) and (
            not isinstance(true_json, dict) or set(given_json) == set(true_json)
        )
    if isinstance(part, ExactVerifier) and (form := date_form([truth])):
        return date_form([answer]) == form
    return not isinstance(part, ExactVerifier) or len(answer) <= LONGER * len(truth) + ROOM


# How the rows of a file are worded, so that the question says what the verifier wants: the options of a choice, the
# form of a number, a date or a list, the keys of JSON. Wording and verifier are chosen together; neither is right
# without the other.
#
# A bundled starter is asked as it was trained: its answer between <answer> tags, a plain question in its own words.
# Every other model is asked for the answer alone, for small models do not write tags that they were never shown.

SYSTEM = "Give only the answer that is asked for, without an explanation."
"""System prompt of a task whose answers stand alone: the app's own prompt asks for steps and tags."""
NO_NAMES = frozenset(
    {*QUESTIONS, "content", "body", "x", "output", "target", "completion", "expected", "response", "solution"}
    | {"result", "to", "answer", "correct_answer", "right_answer", "y", "gold", "antwort", "losung", "respuesta"}
)
"""Column names that say nothing about their content."""
SORTED_INTO = frozenset(
    (
        "category",
        "class",
        "label",
        "topic",
        "type",
        "intent",
        "tag",
        "group",
        "department",
        "genre",
        "kind",
        "team",
        "queue",
        "theme",
        "subject",
        "area",
    )
)
_THINGS = (
    "abbreviation account action address age allergen amount author brand capital city code color colour command "
    "comment company complaint continent correction cost country county currency customer date day deadline "
    "description desk destination diagnosis dialect difficulty direction discount disease distance district domain "
    "dose duration email emotion enquiry entity entry error event feedback field firm forename form format formula "
    "function gender grade headline height hour house id ingredient inquiry instruction item job keyword language "
    "length letter level licence license line location log mail material meaning message method minute mistake "
    "model month mood name note number office opinion order origin paragraph passage pattern person phone phrase "
    "place plan post price priority problem product quantity query rating reason recipe record regex region reply "
    "report request review role room rule salary score season section sector sentence sentiment severity sex shop "
    "size skill song source species speed spelling sport stage star state statement status step store story street "
    "style sum summary supplier surname symbol symptom synonym target task temperature term text ticket time title "
    "tone town trade translation tweet unit urgency user value vehicle verb verdict version volume weekday weight "
    "width word year zip "
)
THINGS = SORTED_INTO | frozenset(_THINGS.split())
"""Nouns that columns are named by: these stand in a sentence without quotation marks."""
YES = frozenset({"yes", "true", "y", "1", "ja", "si", "sí", "oui"})
NO = frozenset({"no", "false", "n", "0", "nein", "non"})
LONGEST_NAME = 30
SLACK = 16
"""Tokens beyond the longest answer: a few words before it are no reason to cut it off."""
REWRITTEN = 0.5
"""Share of an answer's words found in its question above which the answer is a rewriting of the question."""
_ASKS = re.compile(
    r"(what|which|who|whom|whose|how|when|where|why|is|are|was|were|does|do|did|can|could|should|will|would|has|have|if|"
    r"calculate|compute|convert|count|evaluate|solve|simplify|find|give|list|name|tell|say|write|translate|sort|reverse|"
    r"complete|add|subtract|multiply|divide|double|round|choose|answer|explain|describe|determine|identify|classify)\b",
    re.IGNORECASE,
)
_MARKS: Mapping[str, str] = {",": "commas", ";": "semicolons", "|": "vertical bars", " ": "spaces"}
_PLACES = ("no", "one", "two", "three", "four", "five", "six")


@dataclass(frozen=True)
class WordingInput:
    """The input for a wording. question: the column; question_name, answer_name: the file's names for both columns; pairs:
    (question, right answer) of the rows; verifier: how they are judged; tagged: the answer is between tags."""

    question: str
    question_name: str
    answer_name: str
    pairs: Sequence[tuple[str, str]]
    verifier: Verifier
    tagged: bool

    @property
    def answers(self) -> list[str]:
        """The right answers."""
        return [answer for _, answer in self.pairs]


@dataclass(frozen=True)
class QuestionWording:
    """The wording and the verifier. system, max_new_tokens: as in task.toml."""

    prompt: str
    verifier: Verifier
    system: str = ""
    extract: Extract = "tags"
    max_new_tokens: int = 0


def propose_wording(asked: WordingInput) -> QuestionWording:
    """A question that says what counts as right, and a verifier that wants exactly that."""
    verifier = asked.verifier if asked.tagged and asks_itself(asked) else _strict(asked)
    asked = WordingInput(asked.question, asked.question_name, asked.answer_name, asked.pairs, verifier, asked.tagged)
    cell, label = f"{{{asked.question}}}", _shown(asked.question_name) or "text"
    if asks_itself(asked):
        parts = [cell, _options(asked)]
    else:
        parts = [
            _instruction(asked, label if _is_thing(label) else "text"),
            f"{label[0].upper()}{label[1:]}: {cell}",
        ]
    parts += [reply_form(asked)] if not asked.tagged or len(parts[0]) > len(cell) else []
    return plain_wording("\n\n".join(filter(None, parts)), asked)


def plain_wording(prompt: str, asked: WordingInput) -> QuestionWording:
    """An existing wording, with where its answer is and how long it may be."""
    if asked.tagged:
        return QuestionWording(prompt, asked.verifier)
    lines = any("\n" in answer.strip() for answer in asked.answers)
    extract: Extract = "json" if isinstance(asked.verifier, JsonEqual) else "whole" if lines else "last_line"
    return QuestionWording(prompt, asked.verifier, SYSTEM, extract, max(map(_tokens, asked.answers), default=0) + SLACK)


def rules_wording(prompt: str, asked: WordingInput, verifier: RulesVerifier) -> QuestionWording:
    """The question with its rules under it, which judge the whole reply: no example could teach a model to mark its answer, so
    that one which never saw marks would earn nothing. prompt: an existing wording, "" for none."""
    told = f"{prompt or f'{{{asked.question}}}'}\nRules: {verifier.rules}"
    longest = longest_answer(verifier.rules)
    return QuestionWording(told, verifier, SYSTEM, "whole", _tokens("x" * longest) + SLACK if longest else 0)


def asks_itself(asked: WordingInput) -> bool:
    """Whether the cells are questions or instructions themselves: nothing need be said before them."""
    if asked.question in ASKING:
        return True
    cells = [text.strip() for text, _ in asked.pairs[:200]]
    asking = sum(text.endswith("?") or _ASKS.match(text) is not None for text in cells)
    return 2 * asking > len(cells) and not (isinstance(asked.verifier, ChoiceVerifier) and asked.verifier.options)


def reply_form(asked: WordingInput) -> str:
    """One sentence about the reply that the verifier wants. "" where tags say it and nothing needs to be added."""
    form = _form(asked)
    if asked.tagged:
        return f"The answer is {form}." if "," in form or "(" in form else ""
    if isinstance(asked.verifier, ChoiceVerifier) and _yes_or_no(asked.verifier.options):
        return f"Reply {form} only."
    return f"Reply only with {form}." if "," in form or "(" in form else f"Reply with {form} only."


def _form(asked: WordingInput) -> str:
    """What a right answer looks like: the category; a number and its unit (km or m), for example 3.2 km."""
    verifier, name = asked.verifier, _shown(asked.answer_name)
    name = name if _is_thing(name) else "answer"
    if isinstance(verifier, ChoiceVerifier) and _yes_or_no(verifier.options):
        return _or(verifier.options)
    if isinstance(verifier, NumberVerifier):
        return _number_form(verifier, asked.answers)
    if isinstance(verifier, JsonEqual):
        return _json_form(asked.answers)
    if isinstance(verifier, ListVerifier | ItemSet | OrderVerifier):
        order = "in any order" if isinstance(verifier, ItemSet) else "in the right order"
        order = "in alphabetical order" if not isinstance(verifier, ItemSet) and _alphabetical(asked) else order
        items = plural_noun(name) if name != "answer" else "items"
        return f"the {items}, separated by {_MARKS.get(verifier.separator, repr(verifier.separator))}, {order}"
    if form := date_form(asked.answers):
        return f"the {name}, in the form {form}"
    return f"the {name}"


def _instruction(asked: WordingInput, shown: str) -> str:
    """The instruction for the row, as a person would say it."""
    verifier, name = asked.verifier, _shown(asked.answer_name)
    if isinstance(verifier, ChoiceVerifier) and verifier.options:
        return _choose(verifier.options, shown, name)
    if isinstance(verifier, JsonEqual):
        return f"Turn this {shown} into JSON."
    if isinstance(verifier, ExactVerifier) and not date_form(asked.answers) and _rewritten(asked):
        return _rewriting(shown, name)
    numbers = few_numbers(asked.answers) if isinstance(verifier, NumberVerifier) else ()
    among = f" It is one of these: {', '.join(numbers)}." if numbers else ""
    if name and not _is_thing(name):
        return f"Fill in {_label(name)} for this {shown}.{among}"
    if isinstance(verifier, ListVerifier | ItemSet | OrderVerifier):
        return f"List the {plural_noun(name or 'item')} of this {shown}."
    return f"Give the {name or 'answer'} for this {shown}.{among}"


def _rewriting(shown: str, name: str) -> str:
    """The instruction to rewrite the text, for a column of that name."""
    if name and not _is_thing(name):
        return f"Rewrite this {shown}. The result is called {_label(name)}."
    return f"Turn this {shown} into {_article(name)}{name}." if name else f"Rewrite this {shown}."


def _choose(options: Sequence[str], shown: str, name: str) -> str:
    """The instruction to choose between these, for a column of that name."""
    if _yes_or_no(options):
        noun = re.sub(r"^(is|has|are) ", "", name or "right")
        return f"Read this {shown} and decide: {noun}, {_or(options)}?"
    if not name or name.rpartition(" ")[2] in SORTED_INTO:
        return f"Sort this {shown} into one of these {plural_noun(name or 'category')}: {', '.join(options)}."
    if not _is_thing(name):
        return f"Fill in {_label(name)} for this {shown} with one of these: {', '.join(options)}."
    return f"Choose the {name} for this {shown} from these: {', '.join(options)}."


def _options(asked: WordingInput) -> str:
    """The options of a choice, to follow a question that does not name them."""
    if (
        not isinstance(asked.verifier, ChoiceVerifier)
        or not asked.verifier.options
        or _yes_or_no(asked.verifier.options)
    ):
        return ""
    named = all(
        option.casefold() in text.casefold() for text, _ in asked.pairs[:50] for option in asked.verifier.options
    )
    return "" if named else f"The answer is one of these: {', '.join(asked.verifier.options)}."


def _strict(asked: WordingInput) -> Verifier:
    """The verifier, requiring what the wording asks for: a unit where there are several, the case where the question has the
    answer except for its case."""
    verifier = asked.verifier
    if isinstance(verifier, NumberVerifier) and len(verifier.units) > 1:
        units = sum(answer.strip()[-1:].isdigit() for answer in asked.answers)
        return verifier if units else msgspec.structs.replace(verifier, need_unit=True)
    if isinstance(verifier, ExactVerifier) and not verifier.case:
        same = sum(text.strip().casefold() == answer.strip().casefold() for text, answer in asked.pairs)
        return msgspec.structs.replace(verifier, case=True) if 10 * same > len(asked.pairs) > 0 else verifier
    return verifier


def _number_form(verifier: NumberVerifier, answers: Sequence[str]) -> str:
    example = lookalike_answer(answers)
    if len(verifier.units) > 1 and verifier.need_unit:
        return f"a number and its unit ({_or(verifier.units)}), for example {example}"
    if verifier.units:
        return f"the number in {_or(verifier.units)}, for example {example}"
    places = Counter(len(text.strip().rpartition(verifier.decimal)[2]) for text in answers if verifier.decimal in text)
    if verifier.abs and len(places) == 1 and places.total() == len(answers):
        (count,) = places
        word = _PLACES[count] if count < len(_PLACES) else str(count)
        return f"the number, with {word} decimal place{'s' * (count > 1)}, for example {example}"
    return f"the number, for example {example}" if verifier.abs else "the number"


def _json_form(answers: Sequence[str]) -> str:
    """The keys of the objects, with what their values are; keys found in every answer first."""
    keys: dict[str, Counter[str]] = {}
    objects = 0
    for text in answers:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            objects += 1
            for key, content in value.items():
                keys.setdefault(key, Counter())[_kind(content)] += 1
    if not keys or 2 * objects < len(answers):
        return "JSON"
    shown = [f'"{key}" ({_or(sorted(keys[key]))})' for key in sorted(keys, key=lambda key: keys[key].total() < objects)]
    some = "" if all(counts.total() == objects for counts in keys.values()) else ", without those that have no value"
    return f"one JSON object, with the key{'s' * (len(shown) > 1)} {_and(shown)}{some}"


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, dict):
        return "object"
    return "text" if isinstance(value, str) else "list" if isinstance(value, list) else "number"


def _shown(name: str) -> str:
    """A column's name in a sentence: customer_message is customer message; "" for one that says nothing."""
    plain = " ".join(re.sub(r"[_{}\s-]+", " ", name).split())
    if plain.casefold().replace(" ", "_") in NO_NAMES or not re.search(r"[^\W\d_]", plain) or len(plain) > LONGEST_NAME:
        return ""
    return "" if re.fullmatch(r"column \d+", plain) else plain if plain.isupper() else plain.lower()


def _is_thing(name: str) -> bool:
    """Whether a column's name can stand in a sentence as a noun, as "priority" can and "about" or "assigned to" cannot."""
    last = name.rpartition(" ")[2].casefold()
    ends = (last, last.removesuffix("s"), last.removesuffix("es"), re.sub(r"ies\Z", "y", last))
    return any(word in THINGS for word in ends)


def _label(name: str) -> str:
    """A column's name that is no noun, as what a field in a form is called."""
    return f'"{name.replace(chr(34), "")}"'


def plural_noun(name: str) -> str:
    """The English plural: category is categories."""
    if name.endswith(("s", "data")) and not name.endswith(("class", "ss")):
        return name
    if re.search(r"[^aeiou]y\Z", name):
        return f"{name[:-1]}ies"
    return f"{name}es" if name.endswith(("s", "x", "z", "ch", "sh")) else f"{name}s"


def _article(name: str) -> str:
    last = name.rpartition(" ")[2]
    return "" if last.endswith("s") or last in ("style", "text", "english", "code", "json") else "the "


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _or(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _yes_or_no(options: Sequence[str]) -> bool:
    folded = {option.casefold() for option in options}
    return len(folded) == 2 and bool(folded & YES) and bool(folded & NO)


def _alphabetical(asked: WordingInput) -> bool:
    mark = getattr(asked.verifier, "separator", ",")
    lists = [items for answer in asked.answers if len(items := split_items(answer, mark)) > 1]
    return bool(lists) and all(items == sorted(items) for items in lists)


def _rewritten(asked: WordingInput) -> bool:
    """Whether most words of the answers are in their questions."""
    shares = []
    for text, answer in asked.pairs[:200]:
        words = re.findall(r"\w+", answer.casefold())
        asked_words = set(re.findall(r"\w+", text.casefold()))
        shares.append(sum(word in asked_words for word in words) / len(words) if len(words) > 1 else 0.0)
    return bool(shares) and sum(shares) / len(shares) >= REWRITTEN


def _tokens(text: str) -> int:
    """An upper bound on the tokens of the text for usual tokenizers: digits, marks and foreign letters may be one or more
    each."""
    letters = sum(char.isascii() and char.isalpha() for char in text)
    return (letters + 1) // 2 + len(text.encode("utf-8", "replace")) - letters
