"""A calculator: the model says what to calculate, reads the result, and answers with it in its next turn."""


class Calculator:
    """Sums and differences of two numbers."""

    calls = r"(?P<calculate>\d{1,4}\s*[+-]\s*\d{1,4})\s*="
    """For a small model: what it writes before an equals sign is calculated. Larger ones call calculate by name."""

    def reset(self, **row: str) -> None:  # noqa: ARG002 - every column comes
        """Begin an episode."""
        self.used = False

    def calculate(self, expression: str) -> int:
        """Calculate the sum or the difference of two numbers.

        Args:
            expression: such as 12+30 or 50-8
        """
        self.used = True
        sign = "+" if "+" in expression else "-"
        first, second = (int(part) for part in expression.split(sign))
        return first + second if sign == "+" else first - second

    def get_reward(self) -> float:
        """1 where the calculator was used; whether the answer is right, the other verifier says."""
        return 1.0 if self.used else 0.0
