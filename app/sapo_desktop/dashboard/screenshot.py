"""`python -m sapo_desktop.dashboard.screenshot RECORDING OUT.svg`: a picture of the dashboard over a recorded run."""

from __future__ import annotations

import argparse
import asyncio
import re
from pathlib import Path

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.replay import ReplayFeed, place_in
from sapo_desktop.services.models.recording import load_recording

_OUTSIDE = re.compile(r"@font-face\s*{.*?}|<!--.*?-->", re.DOTALL)
_FAMILY = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


async def picture(recording: Path, size: tuple[int, int], keys: list[str], until: str = "") -> str:
    """SVG text without references to fonts on the network. until: a place in the recording, see place_in; "" its end.

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


def main(arguments: list[str] | None = None) -> int:
    """Write the picture; the exit code. Raises UsageError."""
    parser = argparse.ArgumentParser(prog="screenshot", description="A picture of the dashboard over a recorded run.")
    parser.add_argument("recording", type=Path, help="JSON lines of events, a journal.db or a run's folder")
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", default="120x36", help="columns x rows (default: 120x36)")
    parser.add_argument("--keys", default="", help="keys to press first, separated by commas")
    chosen = parser.parse_args(arguments)
    columns, _, rows = chosen.size.partition("x")
    keys = [key for key in chosen.keys.split(",") if key]
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(asyncio.run(picture(chosen.recording, (int(columns), int(rows)), keys)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
