"""A screenshot of the dashboard over a recorded run."""

from __future__ import annotations

import re
from pathlib import Path

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.replay import ReplayFeed, place_in
from sapo_desktop.services.models.recording import load_recording

_OUTSIDE = re.compile(r"@font-face\s*{.*?}|<!--.*?-->", re.DOTALL)
_FAMILY = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


async def render_screenshot(recording: Path, size: tuple[int, int], keys: list[str], until: str = "") -> str:
    """SVG text without links to fonts on the network. until: a position in the recording, see place_in; "" is its end.

    Raises UsageError.
    """
    events = load_recording(recording)
    if until:
        end = place_in(events, until)
        events = [event for event in events if event.time <= end]
    app = SapoDashboard(ReplayFeed(events, speed=0), glyphs="unicode")
    async with app.run_test(size=size) as pilot:
        while not app.begun:
            await pilot.pause()
        await app.workers.wait_for_complete()
        for key in ["", *keys]:
            if key:
                await pilot.press(key)
            app.redraw()
            await pilot.pause()
        drawn = app.export_screenshot(title="sapo-desktop")
    return re.sub(r"font-family:\s*Fira Code", f"font-family: {_FAMILY}", _OUTSIDE.sub("", drawn))
