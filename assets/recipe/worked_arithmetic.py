"""Short worked solutions of the arithmetic tasks, written by us, computed from the entry that the generator gave."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Context, Decimal
from math import gcd
from typing import Any

_TOKEN = re.compile(r"\d+\.\d+|\d+|[-+*/()]")


def base_conversion(entry: dict[str, Any]) -> tuple[str, str]:
    """Horner into decimal, then division by the target base with remainders. Gives (steps, answer)."""
    meta = entry["metadata"]
    source, target = meta["source_base"], meta["target_base"]
    digits = [int(c, 36) for c in meta["source_repr"]]
    steps = []
    if source != 10:
        value, read = 0, []
        for digit in digits:
            value = value * source + digit
            read.append(str(value))
        steps.append(f"Read base {source}:{','.join(read)}.")
    if target != 10:
        value, divided = meta["decimal_value"], []
        while True:
            value, remainder = divmod(value, target)
            divided.append(f"{value}r{remainder}")
            if value == 0:
                break
        steps.append(f"Divide {meta['decimal_value']} by {target}:{','.join(divided)}.")
    return " ".join(steps), str(entry["answer"])


def fraction_simplification(entry: dict[str, Any]) -> tuple[str, str]:
    """The prime factors of the greatest common divisor, smallest first, divided out one at a time."""
    meta = entry["metadata"]
    numerator, denominator = meta["numerator"], meta["denominator"]
    rest, prime, steps = gcd(numerator, denominator), 2, [f"{numerator}/{denominator}"]
    while rest > 1:
        if rest % prime:
            prime += 1
            continue
        rest, numerator, denominator = rest // prime, numerator // prime, denominator // prime
        steps.append(f"by {prime}:{numerator}/{denominator}")
    return " ".join(steps) + ".", str(entry["answer"])


class _Reducer:
    """Recursive descent over + - * / and parentheses that writes one line per binary operation, in order."""

    def __init__(self, expression: str, exact: bool) -> None:
        self.tokens = _TOKEN.findall(expression)
        self.place = 0
        self.exact = exact
        self.context = Context(prec=5, rounding=ROUND_HALF_UP)
        self.steps: list[str] = []

    def _peek(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def _next(self) -> str:
        self.place += 1
        return str(self.tokens[self.place - 1])

    def show(self, value: Decimal) -> str:
        return format(value, "f")

    def _apply(self, operator: str, left: Decimal, right: Decimal) -> Decimal:
        if self.exact:  # integers: reasoning_gym divides with floor
            a, b = int(left), int(right)
            value = Decimal({"+": a + b, "-": a - b, "*": a * b}[operator] if operator != "/" else a // b)
        else:
            context = self.context
            operations = {"+": context.add, "-": context.subtract, "*": context.multiply, "/": context.divide}
            value = operations[operator](left, right)
        self.steps.append(f"{self.show(left)}{operator}{self.show(right)}={self.show(value)}")
        return value

    def sum(self) -> Decimal:
        value = self.product()
        while self._peek() in ("+", "-"):
            operator = self._next()
            value = self._apply(operator, value, self.product())
        return value

    def product(self) -> Decimal:
        value = self.factor()
        while self._peek() in ("*", "/"):
            operator = self._next()
            value = self._apply(operator, value, self.factor())
        return value

    def factor(self) -> Decimal:
        token = self._next()
        if token == "-":
            grouped = self._peek() == "("
            value = self.factor()
            if grouped:
                self.steps.append(f"-({self.show(value)})={self.show(-value)}")
            return -value
        if token == "(":
            value = self.sum()
            self._next()
            return value
        return Decimal(token)


def basic_arithmetic(entry: dict[str, Any]) -> tuple[str, str]:
    """One step per operation, inner parentheses and products first, then left to right."""
    reducer = _Reducer(entry["metadata"]["expression"], exact=True)
    reducer.sum()
    return ";".join(reducer.steps), str(entry["answer"])


def decimal_arithmetic(entry: dict[str, Any]) -> tuple[str, str]:
    """As basic_arithmetic, in decimals of five significant digits."""
    expression = entry["question"].rsplit("\n", 1)[1].removesuffix(" = ?")
    reducer = _Reducer(expression, exact=False)
    reducer.sum()
    return ";".join(reducer.steps), format(Decimal(entry["answer"]), "f")
