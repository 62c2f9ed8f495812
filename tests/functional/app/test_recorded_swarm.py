"""The recorded run of three real nodes: what it holds, and that it plays in the dashboard at both sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.replay import ReplayFeed
from sapo_desktop.services.models.recording import load_recording
from sapo_swarm.events import RoundFinished, RunStarted, SwarmUpdated

RECORDING = Path(__file__).parents[3] / "assets" / "sapo_assets" / "tour" / "swarm.jsonl"


def test_three_nodes_trained_together_and_their_shares_add_up() -> None:
    """A trained starter, others' groups in its batches, a leaderboard of three."""
    assert RECORDING.stat().st_size < 1_000_000
    events = load_recording(RECORDING)
    started = next(event for event in events if isinstance(event, RunStarted))
    assert (started.mode, started.backend) == ("swarm", "torch")
    assert sum(event.external_groups for event in events if isinstance(event, RoundFinished)) > 0
    board = [event.peers for event in events if isinstance(event, SwarmUpdated)][-1]
    assert len(board) == 3
    assert sum(peer.share for peer in board) == pytest.approx(1.0, abs=0.01)  # this node's row is of this moment


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
async def test_it_plays_in_the_dashboard(size: tuple[int, int]) -> None:
    events = load_recording(RECORDING)
    app = SapoDashboard(ReplayFeed(events, speed=0))
    async with app.run_test(size=size) as pilot:
        while app.state.newest < events[-1].time:
            await pilot.pause(0.02)
        await pilot.press("2")
        await pilot.pause()
        app.redraw()
        await pilot.pause()
        text = "\n".join("".join(s.text for s in strip) for strip in app.screen._compositor.render_strips())
        assert "Peers (3)" in text
        for name in ("Ada", "Bo", "Cy"):
            assert name in text
        await pilot.press("j", "h")
        await pilot.pause()
        assert len(app.screen_stack) == 1, "a recording offers no joining and no hosting"
