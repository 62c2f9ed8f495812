"""Zooming and panning of charts: pure functions from one view to the next."""

from __future__ import annotations

from dataclasses import replace
from math import isclose

from sapo_desktop.dashboard.widgets.axis import Axis, View


def zoomed(view: View, axis: Axis | None, steps: int, share: float | None) -> View:
    """steps: +1 half of the window, -1 twice of it, 0 all. share: of the width, the place that stays where it is; None: the
    right end."""
    if axis is None or not steps:
        return replace(view, window=0, end=None)
    first, last = axis.whole
    seen = axis.last - axis.first
    window = max(seen * 0.5**steps, axis.least)
    if isclose(window, seen, rel_tol=1e-6):
        return view
    if window >= last - first:
        return replace(view, window=0, end=None)
    fixed = 1.0 if share is None else share
    end = axis.place(fixed) + (1 - fixed) * window
    return _at(replace(view, window=window), axis, end)


def moved(view: View, axis: Axis | None, share: float) -> View:
    """`share` of the window further to the right."""
    if axis is None or not view.window:
        return view
    return _at(view, axis, axis.last + share * (axis.last - axis.first))


def _at(view: View, axis: Axis, end: float) -> View:
    """With that right end; at the newest it follows what comes."""
    first, last = axis.whole
    end = max(end, first + view.window)
    return replace(view, end=None if end >= last else end)
