"""How a held-out result compares with the base on the same questions, in words. Pure and light: screens import it."""

from __future__ import annotations

from sapo_swarm.events import BaseAsked, Evaluated, GreedyScore


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
    """ "+3.1 points against the base (95 %: +1.0 to +5.2)" and whether that is measurable; else how far the base is, or
    unpaired_reason()."""
    where = ""
    if (difference := base_difference(event)) is None:
        if (so_far := event.so_far) is None:
            return unpaired_reason(event)
        difference, where = (so_far.delta, so_far.low, so_far.high), f" {questions_so_far(event)}"
    delta, low, high = difference
    text = f"{100 * delta:+.1f} points against the base{where} {format_interval(low, high, '+')}"
    return f"{text}: no measurable change" if low <= 0 <= high else text


def questions_so_far(event: Evaluated | GreedyScore) -> str:
    """On which questions a comparison rests that the base is not through with; "" where it is, or there is none."""
    if (so_far := event.so_far) is None:
        return ""
    return f"on the {so_far.items} of {event.items} questions that it has answered so far"


def describe_base_so_far(event: BaseAsked) -> str:
    """How far the untrained model is with the held-out questions, and with what success."""
    if event.answered >= event.items:
        return ""  # its whole result is published beside this
    share = format_rate(event.pass_at_1, event.low, event.high)
    return (
        f"The untrained model has answered {event.answered} of {event.items} held-out questions: {share} right so far"
    )


def unpaired_reason(event: Evaluated | GreedyScore) -> str:
    """Why a trained model's result has no difference from the base; "" where there is nothing to explain."""
    if not event.base_missing:
        return ""
    count = event.base_missing
    return (
        f"not compared with the base, which has not answered {count} of these questions; it is asked between rounds, or when "
        "the node starts"
    )


def describe_practice(before: Evaluated, after: Evaluated) -> str:
    """Whether practice changed what the examples had reached. Two results with intervals that overlap count as equal."""
    text = f"Practice: held-out {100 * before.pass_at_1:.1f} % before it, {100 * after.pass_at_1:.1f} % after it"
    if before.low <= after.high and after.low <= before.high:
        return f"{text}: no measurable change"
    return f"{text}: {100 * (after.pass_at_1 - before.pass_at_1):+.1f} points"


def describe_greedy(event: Evaluated) -> str:
    """The result at temperature 0, as a chat answers, and how it compares with the base's; "" in journals without one."""
    if (score := event.greedy) is None:
        return ""
    text = f"greedy {format_rate(score.pass_at_1, score.low, score.high)} (what chat gives)"
    against = describe_difference(score) if event.round else ""
    return f"{text}, {against}" if against else text


def base_scores(event: Evaluated) -> dict[str, float]:
    """Task -> the base's pass@1 on the same items, where it is known."""
    return {score.task: score.base for score in event.tasks if score.base is not None}
