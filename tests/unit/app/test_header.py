"""The header's sentence: what a node at work says besides its phase."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from tests.unit.app.test_dashboard_text import fold, run

from sapo_desktop.dashboard.look import UNICODE, base_name
from sapo_desktop.dashboard.state import DashboardState, apply_event
from sapo_desktop.dashboard.widgets.frame import header_line
from sapo_swarm.events import Phase, StateChanged
from sapo_swarm.node.round_warnings import CROWDED

SLOWER, ANYWAY = "slower: 84 °C, full speed below 74 °C", "runs anyway until 11:23, r ends that"
GENERATING = Phase(time=2.0, round=2, phase="generate", fraction=0.3, eta_s=3.0, detail="Generating 256 rollouts")


def working(besides: str) -> StateChanged:
    return StateChanged(time=1.0, state="running", sentence=f"Working on round 3{besides}")


def line(state: DashboardState, width: int) -> str:
    return header_line(state, 8.0, width, 24, UNICODE).plain


@pytest.mark.parametrize("width", [80, 120, 160])
def test_a_header_of_a_running_phase_names_the_rule_that_slows_it_and_until_when_it_runs_anyway(width: int) -> None:
    for besides in (SLOWER, ANYWAY):
        assert f"▶ {besides}" in line(fold([run(), working(f" · {besides}"), GENERATING]), width)
    both = line(fold([run(), working(f" · {SLOWER} · {ANYWAY}"), GENERATING]), 160)
    assert f"▶ {SLOWER} · {ANYWAY} · Round 3 · Generating 256 rollouts · 6 s" in both


def test_of_a_long_rule_the_beginning_stands_in_a_narrow_header() -> None:
    long = "slower: you are using the computer, full speed 5 min after your last touch"
    assert "▶ slower: you are using the computer, full" in line(fold([run(), working(f" · {long}"), GENERATING]), 80)


def test_what_the_node_does_stands_before_other_programs_that_slow_it() -> None:
    state = fold([run(), working(CROWDED), GENERATING])
    assert "▶ Round 3 · Generating 256 rollouts · 6 s" in line(state, 80)
    assert f"▶ Round 3 · Generating 256 rollouts{CROWDED} · 6 s" in line(state, 160)
    both = fold([run(), working(f" · {SLOWER}{CROWDED}"), GENERATING])
    assert f"▶ {SLOWER} · Round 3 · Generating 256 rollouts{CROWDED} · 6 s" in line(both, 200)


def test_what_a_long_opening_does_is_not_cut_for_the_name_of_a_model() -> None:
    """It takes a while, once; the name stands in many other places."""
    loading = "Finding the faster precision, once (SmolLM2-135M-Instruct-Q4_1.gguf)"
    starting = StateChanged(time=1.0, state="starting", sentence="Loading SmolLM2-135M-Instruct-Q4_1.gguf")
    state = fold([starting, Phase(time=2.0, round=0, phase="open", fraction=0.01, eta_s=0.0, detail=loading)])
    assert line(state, 80).endswith("… Finding the faster precision, once · 7 s")
    assert f"… {loading} · 7 s" in line(state, 160)


def test_the_log_says_when_a_rule_begins_and_ends_to_slow_a_node_at_work() -> None:
    state = fold([run(), working("")])
    before = len(state.log)
    for besides in (f" · {SLOWER}", f" · {SLOWER}", ""):
        state = apply_event(state, working(besides))
    assert [one.text for one in state.log][before:] == [f"Working on round 3 · {SLOWER}", "Working on round 3"]


@pytest.mark.parametrize("width", [80, 120, 160])
def test_a_header_with_wide_characters_has_width_cells(width: int) -> None:
    told = "Paused: the folder /home/張三/模型資料 has no room · space tries again"
    for model in ("starter", "模型" * 40):
        paused = fold([run(model=model), StateChanged(time=1.0, state="paused", sentence=told)])
        text = line(paused, width)
        assert cell_len(text) == width
        assert text.endswith(" · 7 s")


def test_a_file_is_called_by_its_own_name() -> None:
    """The start of a long path fills a line, and says nothing of the model."""
    assert base_name("/home/me/models/SmolLM2-135M.gguf") == base_name("~/SmolLM2-135M.gguf") == "SmolLM2-135M.gguf"
    assert [base_name(model) for model in ("starter", "owner/name", "qwen:0.5b", "/")] == [
        "starter",
        "owner/name",
        "qwen:0.5b",
        "/",
    ]
