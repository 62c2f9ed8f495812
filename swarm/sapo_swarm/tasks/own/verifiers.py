"""The verifiers that a task can declare: what is compared, as data. How is in sapo_swarm.scoring.declared.

Every part gives a score in [0, 1]; a task's score is their mean, weighted. Strictly right is only what every part calls 1.
`column` names the column with the truth, "" the task's answer column.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Column = Annotated[str, Meta(pattern=r"^([A-Za-z_][A-Za-z0-9_]{0,39})?\Z")]
Short = Annotated[str, Meta(max_length=64)]
Tolerance = Annotated[float, Meta(ge=0.0, le=1e12)]
MAX_PATTERN = 500


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """What all verifiers have."""

    weight: Annotated[float, Meta(gt=0.0, le=1000.0)] = 1.0
    column: Column = ""


class Exact(Part, frozen=True, tag="exact"):
    """The truth's text. Both sides lose outer and repeated white space; Unicode is compared in form NFKC.

    case: letters must agree in case. alternatives: a separator between several truths, any of which is right.
    """

    case: bool = False
    alternatives: Short = ""


class Number(Part, frozen=True, tag="number"):
    """A number within `abs` or within `rel` of the truth, whichever is wider.

    units: written after a number and not compared, except that an answer's unit must be the truth's where both have one.
    need_unit: an answer without the truth's unit is wrong, and case does not count in units that differ in more than that.
    decimal: the decimal mark; the other of "." and "," (and a blank) may stand between thousands.
    """

    abs: Tolerance = 0.0
    rel: Tolerance = 0.0
    units: Annotated[tuple[Short, ...], Meta(max_length=64)] = ()
    need_unit: bool = False
    decimal: Annotated[str, Meta(pattern=r"^[.,]\Z")] = "."


class Choice(Part, frozen=True, tag="choice"):
    """One of the options, in any case, with or without brackets or a full stop: "B", "(b)", "B."."""

    options: Annotated[tuple[Short, ...], Meta(max_length=256)] = ()


class Items(Part, frozen=True, tag="list"):
    """The truth's items in its order. Partial credit: the share of places that agree."""

    separator: Annotated[str, Meta(min_length=1, max_length=8)] = ","


class ItemSet(Part, frozen=True, tag="set"):
    """The truth's items in any order, repeats ignored. Partial credit: shared items over all items."""

    separator: Annotated[str, Meta(min_length=1, max_length=8)] = ","


class Order(Part, frozen=True, tag="order"):
    """The truth's items, each once, in its order. Partial credit: the share of pairs that stand in the right order."""

    separator: Annotated[str, Meta(min_length=1, max_length=8)] = ","


class Regex(Part, frozen=True, tag="regex"):
    """The whole answer matches `pattern`, or the row's own pattern where it is empty."""

    pattern: Annotated[str, Meta(max_length=MAX_PATTERN)] = ""
    case: bool = True


class JsonSchema(Part, frozen=True, tag="json_schema"):
    """JSON that fits the JSON Schema in the folder's schema.json. Nothing is fetched from anywhere."""


class JsonEqual(Part, frozen=True, tag="json_equal"):
    """JSON equal to the truth's; the order of keys does not count. Partial credit: the share of leaves that agree.

    ordered: lists must be in the truth's order. abs: so much may numbers differ.
    """

    ordered: bool = True
    abs: Tolerance = 0.0


class Sql(Part, frozen=True, tag="sql"):
    """A query whose result on the folder's fixture.sqlite is that of the truth's query. ordered: the order of rows counts."""

    ordered: bool = False


class Length(Part, frozen=True, tag="length"):
    """The answer has so many characters; of the whole completion with `whole`."""

    least: Annotated[int, Meta(ge=0, le=100_000)] = 0
    most: Annotated[int, Meta(ge=1, le=100_000)] = 8192
    whole: bool = False


class Format(Part, frozen=True, tag="format"):
    """The answer begins with `starts` and ends with `ends`. only: no other answer before it, and nothing behind it."""

    starts: Short = ""
    ends: Short = ""
    only: bool = True


class PythonTests(Part, frozen=True, tag="python_tests"):
    """Python that passes the row's unit tests: lines such as `double(4) == 8`. Partial credit: the share of tests that pass.

    What the model wrote is run, contained; the person says yes to that once for each task.
    """


class Function(Part, frozen=True, tag="function"):
    """The function in the folder's reward.py, which runs only after the person said yes to it."""


class Environment(Part, frozen=True, tag="environment"):
    """The class in the folder's environment.py, whose tools the model may call and which says the reward in the end. It runs
    only after the person said yes to it. turns: of the model, at most; the last one calls nothing.
    """

    turns: Annotated[int, Meta(ge=1, le=32)] = 8


class Judged(Part, frozen=True, tag="judged"):
    """What a language model says of the answer by the rubric: it fulfils the whole of it, or not. Judged, not verified: it is
    the only verifier of its task, and its rewards never stand in one figure with verified ones.
    """

    rubric: Annotated[str, Meta(min_length=1, max_length=4000)] = "The answer is right, complete and to the point."


Verifier = (
    Exact
    | Number
    | Choice
    | Items
    | ItemSet
    | Order
    | Regex
    | JsonSchema
    | JsonEqual
    | Sql
    | Length
    | Format
    | PythonTests
    | Function
    | Environment
    | Judged
)
TRUTHFUL = (Exact, Number, Choice, Items, ItemSet, Order, JsonEqual, Sql)
"""Verifiers for which the truth itself is a right answer."""
RUNS_CODE = (PythonTests, Function, Environment)
"""Verifiers that run code: only in tasks made on this machine, after a yes, never from a swarm."""
