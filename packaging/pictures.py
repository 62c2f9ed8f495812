"""Makes the README's pictures from the recording of the tour: python packaging/pictures.py [--check]

The same recording gives the same pictures on every machine; --check only says which of them are not as they would be made
now. Needs the package and its dependencies installed.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDING = ROOT / "assets" / "sapo_assets" / "tour" / "swarm.jsonl"
FOLDER = ROOT / "assets" / "screenshots"
PICTURES: dict[str, tuple[tuple[int, int], list[str], str]] = {
    "dashboard": ((120, 36), [], "210"),
    "swarm": ((120, 40), ["2"], "210"),
}
"""Name of a file: (columns, rows), keys pressed, place in the recording."""


_OUTSIDE = re.compile(r"@font-face\s*{.*?}|<!--.*?-->", re.DOTALL)
_FAMILY = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


async def render_screenshot(recording: Path, size: tuple[int, int], keys: list[str], until: str = "") -> str:
    """SVG text without links to fonts on the network. until: a position in the recording, see place_in; "" is its end.

    Raises UsageError.
    """
    from sapo_desktop.dashboard.app import SapoDashboard
    from sapo_desktop.dashboard.replay import ReplayFeed, place_in
    from sapo_desktop.services.models.recording import load_recording

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


def drawn(name: str) -> str:
    """The picture as SVG."""
    size, keys, until = PICTURES[name]
    return asyncio.run(render_screenshot(RECORDING, size, keys, until))


def main() -> int:
    """Write the pictures; with --check 1 where one differs."""
    os.environ.update({"TZ": "UTC", "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "COLORTERM": "truecolor"})
    time.tzset()
    FOLDER.mkdir(exist_ok=True)
    stale = []
    for name in PICTURES:
        path, svg = FOLDER / f"{name}.svg", drawn(name)
        if "--check" in sys.argv:
            stale += [name] if not path.exists() or path.read_text("utf-8") != svg else []
        else:
            path.write_text(svg, "utf-8")
            print(f"{path.relative_to(ROOT)}: {len(svg):,} bytes")
    if stale:
        print(f"Not as they would be made now: {', '.join(stale)}. Make them: python packaging/pictures.py")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
