"""The keys of screens with charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.screen import Screen

from sapo_desktop.dashboard.widgets.chart import Chart
from sapo_desktop.dashboard.widgets.plot import Axis

_STEP, _FINE = 0.25, 0.02
"""Shares of the width by which an arrow key moves the window, and the crosshair."""


class ChartKeys(Screen[None]):
    """The keys of a screen with charts. Keys and mouse move all of its charts together."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "freeze", "freeze", show=False),
        Binding("s", "smooth", "smooth", show=False),
        Binding("b", "band", "range", show=False),
        Binding("T", "time", "time or rounds", show=False),
        Binding("X", "cross", "crosshair", show=False),
        Binding("plus", "zoom(1)", "zoom in", show=False),
        Binding("minus", "zoom(-1)", "zoom out", show=False),
        Binding("equals_sign", "zoom(0)", "all of it", show=False),
        Binding("left", "sideways(-1)", "left", show=False),
        Binding("right", "sideways(1)", "right", show=False),
        Binding("shift+left,less_than_sign", "pan(-1)", "earlier", show=False),
        Binding("shift+right,greater_than_sign", "pan(1)", "later", show=False),
    ]

    @property
    def charts(self) -> Sequence[Chart]:
        """All charts of the screen."""
        return list(self.query(Chart))

    def _each(self, do: Callable[[Chart], None]) -> None:
        for chart in self.charts:
            do(chart)

    @property
    def _axis(self) -> Axis | None:
        """The axis of the first chart that has one."""
        return next((axis for chart in self.charts if (axis := chart.axis) is not None), None)

    @property
    def _cross(self) -> float | None:
        return next((chart.view.cross for chart in self.charts), None)

    def action_freeze(self) -> None:
        """Hold the charts still, or let them go on."""
        self._each(lambda chart: chart.toggle_frozen())

    def action_smooth(self) -> None:
        """Mean of 20, 50, 1 or 5 rounds."""
        self._each(lambda chart: chart.next_smoothing())

    def action_band(self) -> None:
        """Smallest and largest values too, or not."""
        self._each(lambda chart: chart.toggle_band())

    def action_time(self) -> None:
        """The axis in time (gaps where nothing ran), or in rounds."""
        self._each(lambda chart: chart.toggle_time())

    def action_cross(self) -> None:
        """One crosshair over all charts, or none; the mouse has its own."""
        axis = self._axis if self._cross is None else None
        place = axis.last if axis is not None else None
        self._each(lambda chart: chart.point(place))

    def action_zoom(self, steps: int) -> None:
        """Half the window, twice the window, or everything; the mouse wheel, too. steps: 1, -1, 0; about the crosshair, where
        there is one."""
        axis, cross = self._axis, self._cross
        share = None if cross is None or axis is None else min(max(axis.share(cross), 0.0), 1.0)
        self._each(lambda chart: chart.zoom(steps, share))

    def action_pan(self, steps: int) -> None:
        """A quarter of the window earlier or later; dragging, too."""
        self._each(lambda chart: chart.pan(steps * _STEP))

    def action_sideways(self, steps: int) -> None:
        """Move the crosshair; without one, the window."""
        axis, cross = self._axis, self._cross
        if axis is None or cross is None:
            self.action_pan(steps)
        else:
            place = axis.place(min(max(axis.share(cross) + steps * _FINE, 0.0), 1.0))
            self._each(lambda chart: chart.point(place))

    def on_chart_pointed(self, message: Chart.Pointed) -> None:
        """The crosshair follows the pointer."""
        self._each(lambda chart: chart.point(message.place))

    def on_chart_wheeled(self, message: Chart.Wheeled) -> None:
        """Zoom about the pointer."""
        self._each(lambda chart: chart.zoom(message.steps, message.share))

    def on_chart_dragged(self, message: Chart.Dragged) -> None:
        """The charts follow the pointer."""
        self._each(lambda chart: chart.pan(-message.share))
