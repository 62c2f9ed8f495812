"""What the charts draw, as text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_desktop.dashboard.history.series import Series
from sapo_desktop.dashboard.look import ASCII, UNICODE, GlyphSet, choose_glyphs, draw_sparkline
from sapo_desktop.dashboard.widgets.chart import chart_legend, smoothing_words
from sapo_desktop.dashboard.widgets.plot import ChartLine, ChartMark, ChartView, draw_plot, nice_range
from sapo_swarm.node.training_count import ROUNDS_ONLY


def rising(count: int = 60) -> Series:
    made = Series()
    for x in range(count):
        made = made.append(x, 0.1 + 0.3 * (1 - math.exp(-x / 25)))
    return made


def level(value: float, count: int = 60) -> Series:
    made = Series()
    for x in range(count):
        made = made.append(x, value)
    return made


def text(
    lines: list[ChartLine], marks: list[ChartMark], glyphs: GlyphSet = UNICODE, width: int = 44, height: int = 9
) -> list[str]:
    rows = draw_plot(lines, marks, ChartView(0, 5), width, height, glyphs)
    assert all(sum(len(run) for run, _ in row) == width for row in rows)
    return ["".join(run for run, _ in row).rstrip() for row in rows]


def test_a_solid_line_a_dashed_line_and_the_held_out_marks() -> None:
    lines = [ChartLine("external", level(0.45), "dashed", "line-2"), ChartLine("local", rising(), "solid", "line-1")]
    assert text(lines, [ChartMark(0, 0.12), ChartMark(50, 0.3)]) == [
        "   .6┤",
        "     │⣀⣀ ⣀⣀ ⣀⣀ ⣀⣀ ⣀⣀ ⣀⣀ ⣀⣀ ⣀⣀ ⣀⣀ ⣀⣀ ⣀⣀ ⣀⣀ ⣀⣀",
        "   .4┤                            ⢀⣀⣀⣀⣀⣀⣀⣀⡠⠤",
        "     │             ⣀⣀⣀⠤⠤⠤⠒⠒⠒⠒⠉⠉⠉⠉⠉⠁   ◆",
        "   .2┤     ⢀⣀⠤⠤⠒⠒⠉⠉",
        "     │◆⠤⠔⠒⠉⠁",
        "    0┤",
        "     └┴────────────┴───────────┴────────────",
        "      0           20          40",
    ]


def test_the_same_in_ascii_keeps_the_lines_apart_by_their_characters() -> None:
    lines = [ChartLine("external", level(0.45), "dashed", "line-2"), ChartLine("local", rising(), "solid", "line-1")]
    assert text(lines, [ChartMark(0, 0.12), ChartMark(50, 0.3)], ASCII) == [
        "   .6+",
        "     |     ======",
        "   .4+=====      ===================********",
        "     |            ******************  @",
        "   .2+    ********",
        "     |@***",
        "    0+",
        "     ++------------+-----------+------------",
        "      0           20          40",
    ]


def test_a_first_round_shows_one_dot_on_an_axis_of_ten() -> None:
    assert text([ChartLine("local", level(0.2, 1))], [], height=6) == [
        " .210┤",
        "     │⡀",
        "     │",
        " .190┤",
        "     └┴─────────────────┴──────────────────┴",
        "      0                 5                 10",
    ]


@pytest.mark.parametrize(("top", "label"), [(0.045, "4 %┤"), (0.018, "2.0 %┤"), (1.0, "100 %┤")])
def test_an_axis_of_shares_is_in_percent_as_the_legend_is(top: float, label: str) -> None:
    likelihood = ChartLine("likelihood", level(top), "dashed", "line-3", share=True)
    lines = [likelihood, ChartLine("local", Series())]
    assert any(label in row for row in text(lines, [ChartMark(0, 0.0)]))
    legend = chart_legend(lines, [], ChartView(), None, 40, UNICODE, lambda _: "red").plain
    assert legend.endswith(f"likelihood {100 * top:.1f} %")


def test_shares_beside_rewards_are_in_the_unit_of_rewards() -> None:
    lines = [ChartLine("likelihood", level(0.045), "dashed", "line-3", share=True), ChartLine("local", level(0.5))]
    assert "%" not in "".join(text(lines, []))
    assert "likelihood .045" in chart_legend(lines, [], ChartView(), None, 60, UNICODE, lambda _: "red").plain


@given(st.floats(0, 0.99), st.floats(0.0001, 1))
def test_percentages_fit_beside_the_axis(low: float, span: float) -> None:
    shares = level(low, 2).append(2, min(low + span, 1.0))
    text([ChartLine("share", shares, share=True)], [])


@pytest.mark.parametrize(
    ("count", "share", "words"), [(1, False, "every round"), (2, False, "mean of 20"), (2, True, "every round")]
)
def test_a_chart_says_mean_only_of_more_than_one_value(count: int, share: bool, words: str) -> None:
    lines = [ChartLine("drawn", level(0.5, count), share=share), ChartLine("without data", Series())]
    assert smoothing_words(lines, ChartView(), ROUNDS_ONLY) == words


def test_gaps_interrupt_the_line() -> None:
    made = Series()
    for x in range(40):
        made = made.append(x, None if 10 <= x < 30 else 0.5)
    rows = text([ChartLine("external", made)], [], width=46, height=6)
    (row,) = [row for row in rows if any("⠀" <= char <= "⣿" for char in row)]
    assert " " * 15 in row.strip()


def test_nothing_to_draw_gives_no_rows() -> None:
    assert draw_plot([ChartLine("local", Series())], [], ChartView(), 60, 10, UNICODE) == []
    assert draw_plot([ChartLine("local", rising())], [], ChartView(), 6, 10, UNICODE) == []


@given(st.floats(-5, 5, allow_nan=False), st.floats(0, 3))
def test_the_axis_always_holds_its_values(low: float, span: float) -> None:
    bottom, top, step = nice_range(low, low + span)
    assert bottom <= low + 1e-9
    assert top >= low + span - 1e-9
    assert 1 <= round((top - bottom) / step) <= 8


@given(
    st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=50),
    st.integers(1, 120),
    st.integers(1, 30),
    st.sampled_from([UNICODE, ASCII]),
    st.integers(0, 60),
    st.integers(1, 50),
)
def test_every_row_is_exactly_as_wide_as_asked(
    values: list[float | None], width: int, height: int, glyphs: GlyphSet, window: int, smooth: int
) -> None:
    made = Series()
    for x, value in enumerate(values):
        made = made.append(x, value)
    rows = draw_plot([ChartLine("local", made)], [ChartMark(3, 0.5)], ChartView(window, smooth), width, height, glyphs)
    assert len(rows) in (0, height)
    assert {sum(len(run) for run, _ in row) for row in rows} <= {width}


def test_a_sparkline_ends_with_the_newest_value_at_the_right() -> None:
    assert draw_sparkline([0.0, None, 1.0], 5, UNICODE) == "  ▁ █"
    assert draw_sparkline([3.0, 3.0], 4, ASCII) == "  --"
    assert draw_sparkline([], 3, UNICODE) == "   "


def test_the_linux_console_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "linux")
    assert choose_glyphs("auto") is ASCII
    assert choose_glyphs("unicode") is UNICODE
    with pytest.raises(ValueError, match="Known: auto, unicode, ascii"):
        choose_glyphs("emoji")
