"""Multiple choice: a row's options, in separate columns or in one that lists them, become letters or a list."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import takewhile
from string import ascii_uppercase as LETTERS
from typing import Literal

from sapo_desktop.services.tasks.proposal.columns import ANSWERS, HARDNESS, QUESTIONS, column_heading, column_headings
from sapo_swarm.tasks.own.import_rows import MAX_CELL, Row, RowTable, cell_text, column_slug

# The options listed in one cell of a file.

_LABEL = re.compile(r"\(?([A-Z])[).:]\s+", re.IGNORECASE)
_LABELS = re.compile(r"(?:^|(?<=\s))\(?[A-Z][).:]\s+")
Entry = tuple[str, str]
"""An option's name in the file, "" where it has none, and its text, "" where the row has none in that place."""


def bare_text(text: str, letter: str) -> str:
    """The text without this letter in front, as in A) or (A)."""
    match = _LABEL.match(text)
    return text[match.end() :] if match and match[1].casefold() == letter.casefold() else text


def parse_options(text: str) -> Iterator[Entry]:
    """The options in a cell that lists them."""
    value = _value(text)
    if isinstance(value, dict) and isinstance(texts := value.get("text"), list):
        labels = value.get("label")
        value = dict(zip(labels, texts, strict=False)) if isinstance(labels, list) else texts
    if isinstance(value, dict):
        value = [{"label": label, "text": item} for label, item in value.items()]
    for item in value if isinstance(value, list) else []:
        label, option_text = (item.get("label"), item.get("text")) if isinstance(item, dict) else ("", item)
        yield cell_text(label), cell_text(option_text)


def _value(text: str) -> object:
    """JSON or a list as Python prints it, else the pieces between letters, lines, bars or semicolons."""
    plain = text.strip()
    if plain[:1] in ("[", "{"):
        for parse in (json.loads, ast.literal_eval):
            try:
                return parse(plain)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
        return None
    if len(_LABELS.findall(plain)) > 1:
        return _LABELS.split(plain)[1:]
    return next((plain.split(mark) for mark in ("\n", "|", ";") if mark in plain), None)


# Multiple choice: a row's options, in separate columns or in one that lists them, become lines of its question. So do
# the wrong ones alone (distractors), with the answer among them.

COLUMN = "options"
"""Holds a row's options as its question shows them."""
ASKS = f"{{{COLUMN}}}\nAnswer with the letter of the right option."
LISTS = (
    *("choices", "options", "endings", "possible_answers", "answer_choices", "answer_options"),
    *("optionen", "antworten", "antwortmoglichkeiten", "auswahl", "opciones", "choix", "opzioni"),
)
"""Usual names, in files and data sets, of columns that list the options."""
KEYS = (
    *("answerkey", "answer_key", "correct_option", "correct", "answer_idx", "gold", "key"),
    *("richtig", "korrekt", "losungsbuchstabe", "correcta", "bonne_reponse", "corretta"),
)
"""Usual names of the answer column beside options."""
WRONG_LISTS = ("distractors", "incorrect_answers", "wrong_answers", "falsche_antworten")
"""Columns that list the wrong options; the answer column beside them has the right one."""
_WRONG = re.compile(
    r"(?:distract[eo]r|distraktor|(?:incorrect|wrong)(?:_answer|_option)?|falsche_antwort)_?(?:[a-z]|\d{1,2})"
)
_RIGHT = re.compile("correct|right|best|richtig|korrekt")
LOOKED_AT = 200
"""Rows, spread over the file, used to find out which column is what."""
_OF_ITS_OWN = re.compile(
    r"(|column|option|choice|answer|answer_option|op|opt|sol|ending|alternative|alt|"
    r"antwort|antwortmoglichkeit|moglichkeit|auswahl|opcion|respuesta|opzione|risposta|choix|reponse)_?([a-z]|\d{1,2})"
)
_RUNS = (LETTERS.lower(), [str(n) for n in range(27)], [str(n) for n in range(1, 27)])
Reading = Literal["letter", "text", "from 0", "from 1"]


@dataclass(frozen=True)
class OptionColumns:
    """Where a file has its options. columns: one per option, or the one that lists them. labels: the file's name for each, ()
    where one column lists them. reading: how the column `answer` names the right one; right: in how many of the rows with an
    answer; unsure: in how many another reading, which fits as often, names a different one. wrong: columns has only the wrong
    ones, `answer` the right one."""

    columns: tuple[str, ...]
    labels: tuple[str, ...] = ()
    answer: str = ""
    reading: Reading = "letter"
    right: int = 0
    of: int = 0
    unsure: int = 0
    wrong: bool = False

    @property
    def sure(self) -> bool:
        """Whether most answers name an option."""
        return 2 * self.right > self.of


def find_options(table: RowTable, asked: str, answer: str) -> OptionColumns | None:
    """The file's options, and how its answers name them; None where it has none. asked, answer: columns that the person
    named, "" for none."""
    sample = table.rows[:: 1 + len(table.rows) // LOOKED_AT]
    option_columns = _listing(table, sample, {asked, answer}) or _of_their_own(table, {asked, answer})
    if option_columns is None:
        return _with_distractors(table, {asked, answer}, answer)
    remaining = [name for name in table.columns if name not in {*option_columns.columns, *HARDNESS, asked}]
    usual = [name for name in (*ANSWERS, *KEYS) if name in remaining]
    others = [name for name in reversed(remaining) if name not in usual and name not in QUESTIONS]
    candidates = [_read(sample, option_columns, name) for name in ([answer] if answer else [*usual, *others])]
    sure = sorted(
        (one for one in candidates if one.sure), key=lambda one: (one.answer in others) * one.reading[:4].count("from")
    )
    best = next(iter([*sure, *candidates]), None)
    return None if best is None else _read(table.rows, option_columns, best.answer)


def put_in(table: RowTable, options: OptionColumns) -> RowTable:
    """The table with one column of options, and letters for answers; rows whose answer is not an option are left out."""
    columns = [name for name in table.columns if name not in {*options.columns, COLUMN}]
    merged = replace(table, columns=[*columns, COLUMN], rows=[], numbers=[], problems=list(table.problems))
    for number, row in zip(table.numbers, table.rows, strict=True):
        new = _row(row, options, {name: row[name] for name in columns if name in row})
        if isinstance(new, str):
            merged.problem(f"Row {number}: {new}")
        else:
            merged.add(number, new)
    return merged


def describe_options(table: RowTable, options: OptionColumns) -> str:
    """How the options are used, or that they are not."""
    where, column = column_headings(table, options.columns), f"column {column_heading(table, options.answer)}"
    if not options.sure:
        looks = f"{where.capitalize()} look{'s' * (len(options.columns) == 1)} like options"
        return f"{looks}, but in {options.of - options.right:,} of {options.of:,} rows {column} names none of them."
    if options.wrong:
        mixed = "mixed by their texts, each with its letter"
        return (
            f"Multiple choice: {column} (the right option) and {where} (wrong ones) stand below the question, {mixed}."
        )
    how = {
        "letter": f"{column} names the right one",
        "text": f"{column} holds the text of the right one, which became its letter",
        "from 0": f"{column} counts them from 0, so that 0 became A",
        "from 1": f"{column} counts them from 1, so that 1 became A",
    }[options.reading]
    also = "text of another one"
    if options.reading != "letter":
        also = "number of another one; if that is meant, write letters"
    doubt = f" In {options.unsure:,} row{'s' * (options.unsure > 1)} it is also the {also}." if options.unsure else ""
    return f"Multiple choice: the options ({where}) stand below the question, each with its letter; {how}.{doubt}"


def option_letters(rows: Iterable[Row]) -> tuple[str, ...]:
    """The letters of the options in rows from put_in."""
    return tuple(sorted({line[0] for row in rows for line in row[COLUMN].split("\n")}))


def _row(row: Row, options: OptionColumns, kept: Row) -> Row | str:
    """The row in the task's form, or why it is left out."""
    entries, answer_text = _entries(row, options), row.get(options.answer, "").strip()
    if len(entries) > len(LETTERS):
        return f"it has {len(entries):,} options; up to {len(LETTERS)} have letters."
    if options.wrong and _plain(answer_text) in _wrong_ones(row, options):
        return f"the answer {answer_text[:40]!r} stands among its wrong options."
    lines = [f"{letter}) {text}" for letter, (_, text) in zip(LETTERS, entries, strict=False) if text]
    if len(lines) < 2:
        return "it has fewer than two options."
    place = _place(answer_text, entries, options)
    if answer_text and place is None:
        return f"the answer {answer_text[:40]!r} is none of its options."
    shown = "\n".join(lines)
    if len(shown) > MAX_CELL:
        return f"its options have {len(shown):,} characters; up to {MAX_CELL:,} are read."
    return {**kept, options.answer: "" if place is None else LETTERS[place], COLUMN: shown}


def _listing(table: RowTable, sample: Sequence[Row], named: set[str]) -> OptionColumns | None:
    """The column that lists the options."""
    for name in LISTS:
        if name in table.columns and name not in named:
            several = sum(len(list(parse_options(row.get(name, "")))) > 1 for row in sample)
            if 2 * several > len(sample):
                return OptionColumns((name,))
    return None


def _of_their_own(table: RowTable, named: set[str]) -> OptionColumns | None:
    """Columns with a common prefix, numbered with letters from a or numbers from 0 or 1: the largest such set."""
    groups: dict[str, dict[str, str]] = {}
    for name in table.columns:
        match = _OF_ITS_OWN.fullmatch(name)
        if match is None or name in named:
            continue
        if (
            match[1] != "column" or column_slug(column_heading(table, name)) == name
        ):  # else it is numbered for lack of a Latin heading
            groups.setdefault(match[1], {})[match[2]] = name
    runs = ((group, tuple(takewhile(group.__contains__, run))) for group in groups.values() for run in _RUNS)
    group, labels = max(runs, key=lambda one: len(one[1]), default=({}, ()))
    return OptionColumns(tuple(group[label] for label in labels), labels) if len(labels) > 1 else None


def _with_distractors(table: RowTable, named: set[str], answer: str) -> OptionColumns | None:
    """Columns of wrong options beside an answer column, preferably one with a name that means right."""
    own = tuple(name for name in table.columns if _WRONG.fullmatch(name) and name not in named)
    columns = own or tuple(name for name in WRONG_LISTS if name in table.columns and name not in named)[:1]
    usual = sorted(
        (name for name in (*ANSWERS, *KEYS) if name in table.columns), key=lambda name: not _RIGHT.search(name)
    )
    right = answer or next(iter(usual), "")
    if not columns or not right:
        return None
    option_columns = OptionColumns(columns, answer=right, reading="text", wrong=True)
    rows = [_row(row, option_columns, {}) for row in table.rows if row.get(right, "").strip()]
    option_columns = replace(option_columns, right=sum(isinstance(row, dict) for row in rows), of=len(rows))
    return option_columns if option_columns.sure else None


def _wrong_ones(row: Row, options: OptionColumns) -> list[str]:
    """The wrong options of a row."""
    cells = [row.get(name, "") for name in options.columns]
    if options.columns[0] in WRONG_LISTS:
        cells = [text for _, text in parse_options(cells[0])] or cells
    return [_plain(text) for text in cells]


def _mixed(row: Row, options: OptionColumns) -> list[Entry]:
    """The right option among the wrong ones, in an order that depends on their texts alone: not on which is right."""
    texts = {text for text in (_plain(row.get(options.answer, "")), *_wrong_ones(row, options)) if text}
    every = "\0".join(sorted(texts))
    return [("", text) for text in sorted(texts, key=lambda text: sha256(f"{every}\0{text}".encode()).digest())]


def _plain(text: str) -> str:
    return " ".join(text.split())


def _entries(row: Row, options: OptionColumns) -> list[Entry]:
    """The options of a row, without their own letters where all have one."""
    if options.wrong:
        return _mixed(row, options)
    if options.labels:
        texts = (_plain(row.get(name, "")) for name in options.columns)
        entries = list(zip(options.labels, texts, strict=True))
    else:
        entries = [(label, _plain(text)) for label, text in parse_options(row.get(options.columns[0], ""))]
    bare = [(label, bare_text(text, letter)) for (label, text), letter in zip(entries, LETTERS, strict=False)]
    return bare if all(new != old for new, old in zip(bare, entries, strict=False) if old[1]) else entries


def _read(rows: Sequence[Row], options: OptionColumns, answer: str) -> OptionColumns:
    """The same with the reading by which most answers of this column name an option. Between letters and texts, the one that
    names more by itself; for numbered columns, texts if both name as many."""
    numbers: tuple[Reading, Reading] = ("from 1", "from 0") if options.labels else ("from 0", "from 1")
    answered = [(row[answer], _entries(row, options)) for row in rows if row.get(answer, "").strip()]
    plain = replace(options, answer=answer, reading="letter", right=0, of=len(answered))
    matches = [_places(answer_text, entries, plain) for answer_text, entries in answered]
    alone = {"letter": [letter for letter, _ in matches], "text": [text for _, text in matches]} | {
        reading: [_place(answer_text, entries, replace(plain, reading=reading)) for answer_text, entries in answered]
        for reading in numbers
    }
    fits = {reading: sum(place is not None for place in places) for reading, places in alone.items()}
    words: Reading = "text" if fits["text"] + _numbered(options) > fits["letter"] else "letter"
    best = replace(plain, reading=words)
    best = replace(best, right=sum(_place(answer_text, entries, best) is not None for answer_text, entries in answered))
    for reading in numbers:
        if fits[reading] > best.right:
            best = replace(plain, reading=reading, right=fits[reading])
    rivals = [rival for rival in alone if "text" in (rival, best.reading) and fits[rival] == fits[best.reading]]
    differ = [
        sum(None not in (a, b) and a != b for a, b in zip(alone[rival], alone[best.reading], strict=True))
        for rival in rivals
    ]
    return replace(best, unsure=max(differ, default=0))


def _numbered(options: OptionColumns) -> bool:
    """Whether its columns are numbered; answers may be numbers for another reason."""
    return "".join(options.labels).isdigit()


def _place(answer: str, entries: Sequence[Entry], options: OptionColumns) -> int | None:
    """Which option the answer names. Where it is read as letter or text, an answer of the other kind is understood too,
    except a number that is not among numeric options."""
    return next((place for place in _places(answer, entries, options) if place is not None), None)


def _places(answer: str, entries: Sequence[Entry], options: OptionColumns) -> tuple[int | None, ...]:
    """Which option the answer names by the reading, then which by the other kind."""
    if options.wrong:
        return (next((place for place, (_, text) in enumerate(entries) if text == _plain(answer)), None),)
    answer_text = _plain(answer).casefold()
    if options.reading.startswith("from"):
        number = re.fullmatch(r"(\d{1,2})(?:\.0*)?", answer_text)
        place = int(number[1]) - int(options.reading[-1]) if number else -1
        return (place if 0 <= place < len(entries) and entries[place][1] else None,)
    bare, column = answer_text.strip("()[]{}.:\"' "), column_slug(answer)
    letters, texts = [], []
    for place, ((label, text), letter) in enumerate(zip(entries, LETTERS, strict=False)):
        if not text:
            continue
        named = bool(bare) and bare in (letter.casefold(), label.casefold())
        if named or (options.labels and options.columns[place] == column):
            letters.append(place)
        if text.casefold() in (answer_text, bare_text(answer_text, letter)):
            texts.append(place)
    by_letter, by_text = (places[0] if len(places) == 1 else None for places in (letters, texts))
    if options.reading == "letter":
        return by_letter, by_text
    number_alone = bare.isdigit() and any(text.isdigit() for _, text in entries)
    return (by_text,) if number_alone else (by_text, by_letter)
