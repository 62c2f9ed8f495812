"""How a held-out result compares with the base on the same questions, in words. Pure and light: screens import it."""

from __future__ import annotations

from sapo_swarm.events import Evaluated, GreedyScore


def format_interval(low: float, high: float, sign: str = "") -> str:
    """ "(95 %: 24.1 to 28.7)" from shares in [0, 1]. sign: "+" to show the sign of the ends of a difference."""
    return f"(95 %: {100 * low:{sign}.1f} to {100 * high:{sign}.1f})"


def format_rate(share: float, low: float, high: float) -> str:
    """ "26.4 % (95 %: 24.1 to 28.7)"."""
    return f"{100 * share:.1f} % {format_interval(low, high)}"


def base_difference(event: Evaluated | GreedyScore) -> tuple[float, float, float] | None:
    """The difference from the base on the same questions, and both ends of its interval; None where there is none."""
    if event.delta is None or event.delta_low is None or event.delta_high is None:
        return None
    return event.delta, event.delta_low, event.delta_high


def describe_difference(event: Evaluated | GreedyScore) -> str:
    """ "+3.1 points against the base (95 %: +1.0 to +5.2)" and whether that is measurable; else unpaired_reason()."""
    if (difference := base_difference(event)) is None:
        return unpaired_reason(event)
    delta, low, high = difference
    text = f"{100 * delta:+.1f} points against the base {format_interval(low, high, '+')}"
    return f"{text}: no measurable change" if low <= 0 <= high else text


def unpaired_reason(event: Evaluated | GreedyScore) -> str:
    """Why a trained model's result has no difference from the base; "" where there is nothing to explain."""
    if not event.base_missing:
        return ""
    count = event.base_missing
    return f"not compared with the base, which has not answered {count} of these questions; it is asked when the node starts"


def describe_greedy(event: Evaluated) -> str:
    """The result at temperature 0, as a chat answers, and how it compares with the base's; "" in journals without one."""
    if (score := event.greedy) is None:
        return ""
    text = f"greedy {format_rate(score.pass_at_1, score.low, score.high)} (what chat gives)"
    against = describe_difference(score) if event.round else ""
    return f"{text}, {against}" if against else text


def base_scores(event: Evaluated, first: Evaluated | None) -> dict[str, float]:
    """Task -> the base's pass@1 on the same items, where it is known. first: the base's own evaluation, for results from
    versions that did not record it."""
    same = first is not None and (first.items, first.temperature) == (event.items, event.temperature)
    older = same and event.round > 0 and not event.base_missing
    noted = {score.task: score.pass_at_1 for score in first.tasks} if first is not None and older else {}
    return noted | {score.task: score.base for score in event.tasks if score.base is not None}
