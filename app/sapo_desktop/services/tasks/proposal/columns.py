"""Which column of a file is the question, which the answer, and how hard a row is: by usual names, else guessed and said."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sapo_desktop.errors import UsageError
from sapo_desktop.services.tasks.proposal.answers import DIGITS
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.tasks.own.import_rows import Row, Table, slug
from sapo_swarm.tasks.own.row_roles import levels
from sapo_swarm.tasks.own.spec import BadTask, TaskSpec

QUESTIONS = (
    *("question", "prompt", "input", "instruction", "text", "problem", "query", "source", "from"),
    *("frage", "aufgabe", "pregunta", "domanda"),
)
ASKING = ("question", "prompt", "instruction", "problem", "query", "frage", "aufgabe", "pregunta", "domanda")
"""Those of them that hold questions and orders, not what something is asked about."""
ANSWERS = (
    *("answer", "output", "target", "label", "category", "completion", "expected", "response", "solution"),
    *("result", "to", "correct_answer", "right_answer", "antwort", "richtige_antwort", "losung", "ergebnis"),
    *("reponse", "respuesta", "risposta"),
)
"""Columns as people call them, in a few languages; accents are gone by then."""
FILLED = 0.9
"""Share of the rows from which on a column may be the question: Alpaca's `input` is often empty, its `instruction` never."""
HARDNESS = ("difficulty", "level")
"""Columns that say how hard a row is."""


def answer(table: Table, wished: str, among: Sequence[str], guess: bool) -> str:
    """The column of the answers; without a usual name the last one that varies, "" where none shall be guessed. among: the
    columns in question. Raises UsageError."""
    return _column(table, wished, [name for name in ANSWERS if name in among], "answer") or (
        _last_that_varies(table, among) if guess else ""
    )


def question(table: Table, wished: str, among: Sequence[str]) -> str:
    """The column that is asked: the one named so, else the one with the longest texts. Raises UsageError."""
    usual = [name for name in QUESTIONS if name in among]
    filled = [
        name for name in usual if sum(row.get(name, "").strip() != "" for row in table.rows) >= FILLED * len(table.rows)
    ]
    if found := _column(table, wished, filled or usual, "question"):
        return found
    if not among:
        raise UsageError(
            f"The file has one column, {table.columns[0]!r}. A task needs a question and an answer for each row."
        )
    return max(among, key=lambda name: sum(len(row.get(name, "")) for row in table.rows[:1000]))


def _column(table: Table, wished: str, usual: Sequence[str], what: str) -> str:
    """The one that the person named, else the first one with a usual name, else ""."""
    if not wished:
        return next(iter(usual), "")
    if found := called(table, wished):
        return found
    heads = ", ".join(heading(table, name) for name in table.columns)
    raise UsageError(f"There is no column {wished!r} for the {what}. The file has: {heads}.")


def called(table: Table, wished: str) -> str:
    """The column that is called so in the file, or so but for case and accents; "" for none."""
    folded = {head.casefold(): name for head, name in table.names.items()}
    wished, plain = wished.strip(), slug(wished)
    return table.names.get(wished) or folded.get(wished.casefold()) or (plain if plain in table.columns else "")


def heading(table: Table, column: str) -> str:
    """What the column is called in the file."""
    heads = (head for head, name in table.names.items() if name == column)
    return safe_text(next(heads, ""), 60, lines=False) or column


def headings(table: Table, columns: Sequence[str]) -> str:
    """What these are called in the file, for a sentence: column a; columns a, b."""
    return f"column{'' if len(columns) == 1 else 's'} {', '.join(heading(table, name) for name in columns)}"


def guessed(table: Table, found: Mapping[str, str], said: Mapping[str, bool]) -> str:
    """Which column is what, where no name said so; "" where names or the person (said) did."""
    usual = {"question": QUESTIONS, "answer": ANSWERS}
    unsaid = [what for what, name in found.items() if name and name not in usual[what] and not said[what]]
    told = [
        f"{what.capitalize()}: column {heading(table, name)}{' (guessed)' * (what in unsaid)}."
        for what, name in found.items()
        if name
    ]
    return " ".join(told) if unsaid else ""


def unused(table: Table, used: Collection[str]) -> str:
    """A sentence with the columns that hold something and are in no question, answer or level; "" for none."""
    left = [name for name in table.columns if name not in used and any(row.get(name, "").strip() for row in table.rows)]
    return f"Not used: {headings(table, left)}." if left else ""


def _last_that_varies(table: Table, among: Sequence[str]) -> str:
    """The last column with more than one value: who entered the rows, or when, is no answer."""
    varied = (name for name in reversed(among) if len({row.get(name) for row in table.rows[:1000]}) > 1)
    return next(varied, among[-1] if among else "")


def no_header(table: Table) -> str:
    """A sentence where the first row looks like data: no usual name in it, and a number, a question, or a cell that stands
    again in its own column."""
    if set(table.columns) & {*QUESTIONS, *ANSWERS, *HARDNESS}:
        return ""
    for name, head in zip(table.columns, map(str.strip, table.heads), strict=False):
        if head and (DIGITS.match(head) or head.endswith("?") or any(row[name].strip() == head for row in table.rows)):
            return "The first row was taken for column names; if it is data, add a header."
    return ""


def difficulty(spec: TaskSpec, rows: Sequence[Row]) -> tuple[str, str]:
    """The column that says how hard each row is, "" for none; and why one that is called so does not."""
    used = [row for row in rows if all(row.get(name, "").strip() for name in spec.columns)]
    column = next((name for name in HARDNESS if name != spec.answer and any(name in row for row in used)), "")
    if not column:
        return "", ""
    without = sum(not row.get(column, "").strip() for row in used)
    if without:
        return "", f"No levels of difficulty: column {column} is empty in {without:,} of {len(used):,} rows."
    try:
        levels(column, used)
    except BadTask as error:
        return "", f"No levels of difficulty: {error}"
    return column, ""
