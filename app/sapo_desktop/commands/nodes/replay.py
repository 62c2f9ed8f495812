"""`replay FILE`: a recorded run in the dashboard (a model's journal.db, or JSON lines of events); `tour`: the one that ships."""

from __future__ import annotations

import argparse
import asyncio

from sapo_desktop import settings
from sapo_desktop.commands.nodes.dashboard import in_lines, print_line, require_terminal, run_verb
from sapo_desktop.paths import Home

SPEED = 20.0


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The verb's own arguments."""
    if verb == "replay":
        parser.add_argument("file", help="a model, a journal.db, or the output of node --json")
    parser.add_argument(
        "--speed",
        type=_speed,
        default=0.0,
        help="how many times faster than it happened "
        + ("(default: 20)" if verb == "replay" else "(default: two minutes)"),
    )
    parser.add_argument(
        "--from",
        dest="start",
        default="",
        metavar="PLACE",
        help="begin at a round (120), a share (50%%) or a time (2h)",
    )
    parser.add_argument(
        "--linear", action="store_true", default=argparse.SUPPRESS, help="in sentences, for screen readers"
    )
    parser.set_defaults(told=verb)


def _speed(text: str) -> float:
    speed = float(text)
    if not 0 < speed <= 1e6:
        raise ValueError
    return speed


def main(args: argparse.Namespace) -> int:
    """The exit code. Raises UsageError for an unreadable recording or an invalid start position."""
    from sapo_desktop.dashboard.replay import ReplayFeed, place_in
    from sapo_desktop.dashboard.state import ReplayCaption
    from sapo_desktop.services.models import recording

    captions: list[ReplayCaption] = []
    if args.told == "tour":
        events, texts = recording.load_tour()
        captions = [
            ReplayCaption(place_in(events, str(caption.round)), caption.text, caption.screen) for caption in texts
        ]
        speed = args.speed or max((events[-1].time - events[0].time) / 120, 0.5)
    else:
        _, path = recording.find_recording(Home.find(), args.file)
        events = recording.load_recording(path)  # before the screen opens, so that a bad file gives one plain line
        speed = args.speed or SPEED
    start = place_in(events, args.start) if args.start else None
    feed = ReplayFeed(events, speed, start, captions)
    chosen = settings.load_settings(Home.find().settings)
    if in_lines(args, chosen):
        from sapo_desktop.linear.questions import TypedLines
        from sapo_desktop.linear.session import LinearSession

        async def session() -> None:
            await LinearSession(feed, TypedLines(), print_line, run_verb).run()

        asyncio.run(session())
        return 0
    require_terminal(f"sapo-desktop {args.told} --linear")
    from sapo_desktop.dashboard.app import SapoDashboard

    app = SapoDashboard(feed, glyphs=chosen.ui.glyphs, theme=chosen.ui.theme)
    app.run()
    return app.return_code or 0
