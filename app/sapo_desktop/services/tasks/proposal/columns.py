"""Which column of a file is the question and which the answer, and which verifiers fit those answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sapo_desktop.errors import UsageError
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.scoring import declared_verifiers as items
from sapo_swarm.scoring.declared_verifiers import MINUS, normalised_label, score_declared
from sapo_swarm.tasks.own.folder import OwnTask
from sapo_swarm.tasks.own.import_rows import Row, RowTable, column_slug
from sapo_swarm.tasks.own.row_roles import rows_by_level
from sapo_swarm.tasks.own.spec import (
    BadTask,
    ChoiceVerifier,
    ExactVerifier,
    ItemSet,
    JsonEqual,
    ListVerifier,
    NumberVerifier,
    OrderVerifier,
    TaskSpec,
    Verifier,
)

# Which verifiers fit a file's answers. One that rewards something other than the answer is worse than one that is too
# strict.

MOST = 0.95
"""Share of the answers that a proposed verifier must accept."""
FEW = 12
"""Most different answers for a choice."""
TRIED = 200
"""Answers that a verifier is tried on."""
KINDS = ("exact", "number", "choice", "list", "set", "order", "json_equal")
"""Verifiers that need nothing but the answers."""
DIGITS = re.compile(r"[-+]?\d+(?:\.\d+)?\Z")
_WRITTEN = re.compile(r"[-+]?(\d[\d.,]*\d|\d|[.,]\d+)(\s*)([^\d\s.,]{0,12})\Z", re.ASCII)
_SYMBOL = re.compile(
    r"[nµmcdk]?m[²³]?|ha|[mk]?g|t|[mch]?l|m?s|min|h|[%‰°€$£¥]|°[CF]|EUR|USD|GBP|CHF|JPY|km/h|m/s|mph|"
    r"[kMG]?Hz|[kMGT]B|[mk][VW]|MW|[kM]Wh|mAh?|[kM]J|kcal|[hk]?Pa|bar|in|ft|yd|mi|oz|lb"
)
"""Units that are not part of a code. Single capitals are excluded: 12A may be a house number."""
_DATES = tuple(
    (re.compile(pattern), form)
    for pattern, form in (
        (r"\d{4}-[01]\d-[0-3]\d", "YYYY-MM-DD"),
        (r"\d{4}-[01]\d-[0-3]\d[ T][0-2]\d:[0-5]\d", "YYYY-MM-DD HH:MM"),
        (r"\d{4}/[01]\d/[0-3]\d", "YYYY/MM/DD"),
        (r"[0-3]\d\.[01]\d\.\d{4}", "DD.MM.YYYY"),
        (r"[0-3]\d/[0-3]\d/\d{4}", ""),
        (r"[0-3]\d-[0-3]\d-\d{4}", ""),
        (r"[0-2]\d:[0-5]\d", "HH:MM"),
        (r"\d{1,2} [A-Z][a-z]{2,8} \d{4}", "D Month YYYY"),
        (r"[A-Z][a-z]{2,8} \d{1,2}, \d{4}", "Month D, YYYY"),
    )
)
"""Formats of dates and times; "" where day and month must be told apart by their numbers."""


@dataclass(frozen=True)
class VerifierProposal:
    """A verifier, and why it is proposed."""

    verifier: Verifier
    reason: str

    @property
    def kind(self) -> str:
        """Its name in task.toml."""
        return str(self.verifier.__struct_config__.tag)


@dataclass(frozen=True)
class _Written:
    """An answer that is a number. text: without its sign and unit; glued: no space before the unit."""

    text: str
    unit: str
    glued: bool

    @property
    def mark(self) -> str:
        """Its decimal mark, "" where it has none or is ambiguous: 1,250."""
        marks = [char for char in self.text if char in ".,"]
        if not marks:
            return ""
        if marks.count(marks[-1]) > 1:
            return "," if marks[-1] == "." else "."
        digits, _, places = self.text.rpartition(marks[-1])
        plain = len(marks) > 1 or len(places) != 3 or len(digits) > 3 or digits in ("", "0")
        return marks[-1] if plain else ""


def propose_verifiers(truths: Sequence[str], questions: Sequence[str] = ()) -> tuple[VerifierProposal, ...]:
    """The verifier that fits these answers best, and the others that accept most of them. questions: one per answer."""
    best = VerifierProposal(*best_verifier(truths, questions))
    mark = guess_separator(truths)
    candidates = (
        VerifierProposal(ExactVerifier(), "the text itself, whatever its case and spacing"),
        VerifierProposal(_number(_written(truths))[0], "an equal number; units may stand beside it"),
        VerifierProposal(ChoiceVerifier(), "the right option alone, in any case"),
        VerifierProposal(ListVerifier(separator=mark), "the same items in the same places"),
        VerifierProposal(ItemSet(separator=mark), "the same items in any order"),
        VerifierProposal(OrderVerifier(separator=mark), "the same items in the right order"),
        VerifierProposal(JsonEqual(), "equal JSON; the order of keys does not count"),
    )
    distinct = _distinct({text.casefold() for text in truths})
    fits = (proposal for proposal in candidates if proposal.kind != "choice" or distinct)
    return (
        best,
        *(proposal for proposal in fits if proposal.kind != best.kind and _right(proposal.verifier, truths) > 0.5),
    )


def best_verifier(truths: Sequence[str], questions: Sequence[str] = ()) -> tuple[Verifier, str]:
    """A verifier for these answers, and why."""
    if not truths:
        return ExactVerifier(), "there is no answer to look at"
    fits = (candidate for candidate in _candidates(truths, questions) if _right(candidate[0], truths) >= MOST)
    return next(fits, (ExactVerifier(), "text, whatever its case and spacing"))


def guess_separator(truths: Sequence[str]) -> str:
    """The most likely separator between items."""
    return max((",", ";", "|", " "), key=lambda mark: sum(mark in text for text in truths[:1000]))


def date_form(truths: Sequence[str]) -> str:
    """The format of dates and times, such as YYYY-MM-DD, where the answers are dates or times; "" where they are not."""
    for pattern, form in _DATES:
        if truths and sum(pattern.fullmatch(text.strip()) is not None for text in truths) >= MOST * len(truths):
            return form if form else _day_or_month_first(truths)
    return ""


def _day_or_month_first(truths: Sequence[str]) -> str:
    """DD/MM/YYYY or MM/DD/YYYY, depending on which part exceeds 12; where neither does, an example of the format."""
    mark = next(char for char in truths[0].strip() if not char.isdigit())
    parts = [text.strip().split(mark) for text in truths if text.count(mark) == 2]
    day_first, month_first = (any(int(numbers[place]) > 12 for numbers in parts) for place in (0, 1))
    if day_first == month_first:
        return f"{lookalike_answer(truths)} (such a date)"
    return f"DD{mark}MM{mark}YYYY" if day_first else f"MM{mark}DD{mark}YYYY"


def few_numbers(truths: Sequence[str]) -> tuple[str, ...]:
    """The whole numbers among the answers, where there are only a few, as in a rating; else ()."""
    numbers = {text.strip() for text in truths}
    if not 1 < len(numbers) <= FEW or len(truths) < 4 * len(numbers) or not all(DIGITS.match(text) for text in numbers):
        return ()
    return tuple(sorted(numbers, key=float))


def lookalike_answer(truths: Sequence[str]) -> str:
    """An answer that looks like these and is none of them: an example that gives no row away."""
    answers = {text.strip() for text in truths}
    model = sorted(answers, key=lambda text: (len(text), text))[len(answers) // 2]
    for step in range(1, 1000):
        if step == 100:  # perhaps all answers of that length are taken
            model = re.sub(r"[0-9]", lambda digit: f"{digit[0]}6", model, count=1)
        candidate = _shifted(model, 37 * step)
        if candidate not in answers:
            return candidate
    return model


def _shifted(text: str, by: int) -> str:
    """The text with other digits, as many as before; no number in it gets a leading zero that it did not have."""
    digits = iter(str(int("1" + "".join(re.findall("[0-9]", text))) + by)[1:])
    shifted = re.sub(r"[0-9]", lambda _: next(digits, "7"), text)
    return re.sub(r"(?<![\d.,])0(?=\d)", "4", shifted)


def _listed(truths: Sequence[str], questions: Sequence[str]) -> Iterator[tuple[Verifier, str]]:
    """Lists: short items from a vocabulary or from the question, of varying number. Order is ignored only where no two
    answers differ by order alone."""
    mark = max((";", "|", ","), key=lambda char: sum(char in text for text in truths))
    lists = [items.split_items(text, mark) for text in truths]
    flat = [item for listed in lists for item in listed]
    several = sum(len(listed) > 1 for listed in lists)
    if 2 * several < len(truths) or len({len(listed) for listed in lists}) < 2:
        return
    if any(len(item.split()) > 4 or len(item) > 40 or item[-1:] in ".!?" for item in flat):
        return
    lowered = [text.casefold() for text in questions]
    contained = sum(all(item in text for item in listed) for listed, text in zip(lists, lowered, strict=False))
    if len(set(flat)) > 0.7 * len(flat) and contained < 0.8 * len(truths):
        return
    places = [[text.find(item) for item in listed] for listed, text in zip(lists, lowered, strict=False)]
    in_place = [listed for listed in places if len(listed) > 1 and min(listed) >= 0]
    ordered = len(in_place) >= 0.9 * several and all(listed == sorted(listed) for listed in in_place)
    ordered = ordered or all(listed == sorted(listed) for listed in lists)
    sets = {frozenset(listed) for listed in lists}
    if ordered or len(sets) < len({tuple(listed) for listed in lists}) or any(len(set(f)) < len(f) for f in lists):
        yield ListVerifier(separator=mark), f"the answers are lists with {mark!r} between their items"
    else:
        yield ItemSet(separator=mark), f"the answers are lists with {mark!r} between their items, in any order"


def _candidates(truths: Sequence[str], questions: Sequence[str]) -> Iterator[tuple[Verifier, str]]:
    if form := date_form(truths):
        yield ExactVerifier(), f"the answers are dates or times: {form}"
    numbers = _written(truths)
    if len(numbers) >= MOST * len(truths) and not _codes(numbers):
        yield _number(numbers)
    if any(text[:1] in "{[" for text in truths):
        yield JsonEqual(), "the answers are JSON"
    options = Counter(text.casefold() for text in truths)
    if len(options) <= FEW and _distinct(options) and len(truths) >= 4 * len(options):
        spellings = {text.casefold(): text for text in reversed(truths)}
        if all(len(text) <= 64 for text in spellings.values()):
            yield ChoiceVerifier(options=tuple(sorted(spellings.values()))), _options_in_words(len(options))
    yield from _listed(truths, questions)


def _distinct(options: Collection[str]) -> bool:
    """As options of a choice, no two of them are the same."""
    return len({normalised_label(option) for option in options}) == len(options)


def _options_in_words(count: int) -> str:
    return f"there are only {count} different answers" if count > 1 else "there is only one answer"


def _right(verifier: Verifier, truths: Sequence[str]) -> float:
    """The share of the answers that the verifier itself accepts."""
    task, sample = OwnTask(TaskSpec(name="t", verifier=(verifier,)), (), (), "", ""), truths[:TRIED]
    accepted = [score_declared(task, {"answer": text}, text, text) == 1.0 for text in sample]
    return sum(accepted) / len(accepted) if accepted else 1.0


def _written(truths: Sequence[str]) -> list[_Written]:
    """The answers that are numbers."""
    matches = (_WRITTEN.match(text.translate(MINUS)) for text in truths)
    return [_Written(match[1], match[3], not match[2]) for match in matches if match]


def _codes(written: Sequence[_Written]) -> bool:
    """Some look like codes or formulas: a leading zero, a letter or a power after the digits, words that tell one answer from
    another; or the decimal marks differ. Then another text that is an equal number would not be a right answer."""
    unknown = {number.unit for number in written if number.unit and not _SYMBOL.fullmatch(number.unit)}
    marks = Counter(number.mark for number in written if number.mark)
    return (
        any(re.match(r"0\d", number.text) for number in written)
        or any(number.glued and number.unit in unknown and number.unit[:1].isalpha() for number in written)
        or any(char.isdigit() for unit in unknown for char in unit)
        or (bool(unknown) and len({number.unit for number in written}) > 1)
        or bool(marks and max(marks.values()) < MOST * marks.total())
    )


def _number(written: Sequence[_Written]) -> tuple[NumberVerifier, str]:
    """The verifier for numbers written like this, tolerating half a unit in their last place; and what was assumed."""
    marks = Counter(number.mark for number in written if number.mark)
    decimal = marks.most_common(1)[0][0] if marks else "."
    places = max(
        (len(number.text.partition(decimal)[2]) for number in written if number.text.count(decimal) == 1), default=0
    )
    units = tuple(sorted(unit for unit, _ in Counter(number.unit for number in written if number.unit).most_common(32)))
    reason = f"numbers with up to {places} decimal place{'s' if places > 1 else ''}" if places else "whole numbers"
    reason = "the answers are numbers with a unit" if units else f"the answers are {reason}"
    unsure = next(
        (number.text for number in written if not marks and not number.mark and not number.text.isdigit()), ""
    )
    if unsure:
        reads = "the comma in {} for one between thousands" if "," in unsure else "the point in {} for the decimal mark"
        reason += f'; takes {reads.format(unsure)} (if not: decimal = "," in task.toml)'
    return NumberVerifier(abs=float(f"5e-{places + 1}") if places else 0.0, units=units, decimal=decimal), reason


# Which column of a file is the question, which the answer, and which the difficulty: by usual names, else guessed,
# which is stated.

QUESTIONS = (
    *("question", "prompt", "input", "instruction", "text", "problem", "query", "source", "from"),
    *("frage", "aufgabe", "pregunta", "domanda"),
)
ASKING = ("question", "prompt", "instruction", "problem", "query", "frage", "aufgabe", "pregunta", "domanda")
"""Those that hold questions or instructions, not the subject of a question."""
ANSWERS = (
    *("answer", "output", "target", "label", "category", "completion", "expected", "response", "solution"),
    *("result", "to", "correct_answer", "right_answer", "antwort", "richtige_antwort", "losung", "ergebnis"),
    *("reponse", "respuesta", "risposta"),
)
"""Usual names in a few languages, without accents."""
FILLED = 0.9
"""Share of filled rows above which a column may be the question: Alpaca's `input` is often empty, its `instruction` never."""
HARDNESS = ("difficulty", "level")
"""Columns for the difficulty of a row."""


def find_answer_column(table: RowTable, wished: str, among: Sequence[str], guess: bool) -> str:
    """The column of the answers; without a usual name the last one that varies, "" where nothing may be guessed. among: the
    candidate columns. Raises UsageError."""
    return _column(table, wished, [name for name in ANSWERS if name in among], "answer") or (
        _last_that_varies(table, among) if guess else ""
    )


def find_question_column(table: RowTable, wished: str, among: Sequence[str]) -> str:
    """The column of the questions: the one with that name, else the one with a usual name, unless few values recur in it where
    another column has many (a `source` beside comments), else the one with the longest texts. Raises UsageError."""
    different = {name: len({row.get(name, "").strip() for row in table.rows[:1000]}) for name in among}
    usual = [name for name in QUESTIONS if name in among and 4 * different[name] >= max(different.values())]
    filled = [
        name for name in usual if sum(row.get(name, "").strip() != "" for row in table.rows) >= FILLED * len(table.rows)
    ]
    if column := _column(table, wished, filled or usual, "question"):
        return column
    if not among:
        raise UsageError(
            f"The file has one column, {table.columns[0]!r}. A task needs a question and an answer for each row, or rules that "
            f"an answer keeps, such as: --rules 'at most 8 words; contains {{{table.columns[0]}}}'"
        )
    return max(among, key=lambda name: sum(len(row.get(name, "")) for row in table.rows[:1000]))


def _column(table: RowTable, wished: str, usual: Sequence[str], what: str) -> str:
    """The column that the person named, else the first one with a usual name, else ""."""
    if not wished:
        return next(iter(usual), "")
    if column := find_column(table, wished):
        return column
    heads = ", ".join(column_heading(table, name) for name in table.columns)
    raise UsageError(f"There is no column {wished!r} for the {what}. The file has: {heads}.")


def find_column(table: RowTable, wished: str) -> str:
    """The column with that name in the file, ignoring case and accents; "" for none."""
    folded = {head.casefold(): name for head, name in table.names.items()}
    wished, plain = wished.strip(), column_slug(wished)
    return table.names.get(wished) or folded.get(wished.casefold()) or (plain if plain in table.columns else "")


def column_heading(table: RowTable, column: str) -> str:
    """The column's name in the file."""
    heads = (head for head, name in table.names.items() if name == column)
    return safe_text(next(heads, ""), 60, lines=False) or column


def column_headings(table: RowTable, columns: Sequence[str]) -> str:
    """Their names in the file, for a sentence: column a; columns a, b."""
    return f"column{'' if len(columns) == 1 else 's'} {', '.join(column_heading(table, name) for name in columns)}"


def describe_guessed_columns(table: RowTable, found: Mapping[str, str], said: Mapping[str, bool]) -> str:
    """The guessed role of each column, where no name decided it; "" where names or the person (said) did."""
    usual = {"question": QUESTIONS, "answer": ANSWERS}
    guessed = [role for role, name in found.items() if name and name not in usual[role] and not said[role]]
    parts = [
        f"{role.capitalize()}: column {column_heading(table, name)}{' (guessed)' * (role in guessed)}."
        for role, name in found.items()
        if name
    ]
    return " ".join(parts) if guessed else ""


def describe_unused_columns(table: RowTable, used: Collection[str]) -> str:
    """A sentence with the columns that have content and are in no question, answer or level; "" for none."""
    unused = [
        name for name in table.columns if name not in used and any(row.get(name, "").strip() for row in table.rows)
    ]
    return f"Not used: {column_headings(table, unused)}." if unused else ""


def _last_that_varies(table: RowTable, among: Sequence[str]) -> str:
    """The last column with more than one value: who entered the rows, or when, is not an answer."""
    varied = (name for name in reversed(among) if len({row.get(name) for row in table.rows[:1000]}) > 1)
    return next(varied, among[-1] if among else "")


def no_header(table: RowTable) -> str:
    """A sentence where the first row looks like data: no usual name in it, and a number, a question, or a cell that is
    repeated in its own column."""
    if set(table.columns) & {*QUESTIONS, *ANSWERS, *HARDNESS}:
        return ""
    for name, head in zip(table.columns, map(str.strip, table.heads), strict=False):
        if head and (DIGITS.match(head) or head.endswith("?") or any(row[name].strip() == head for row in table.rows)):
            return "The first row was taken for column names; if it is data, add a header."
    return ""


def find_difficulty_column(spec: TaskSpec, rows: Sequence[Row]) -> tuple[str, str]:
    """The column with each row's difficulty, "" for none; and why a column of that name was not taken."""
    used = [row for row in rows if all(row.get(name, "").strip() for name in spec.columns)]
    column = next((name for name in HARDNESS if name != spec.answer and any(name in row for row in used)), "")
    if not column:
        return "", ""
    without = sum(not row.get(column, "").strip() for row in used)
    if without:
        return "", f"No levels of difficulty: column {column} is empty in {without:,} of {len(used):,} rows."
    try:
        rows_by_level(column, used)
    except BadTask as error:
        return "", f"No levels of difficulty: {error}"
    return column, ""
