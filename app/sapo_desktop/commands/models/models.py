"""`sapo-desktop models`: the models on this machine, actions on them, and the bases that they start from."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sapo_backends.errors import size_text
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home, quote_command, restore_shell_umask, typed_target
from sapo_desktop.services.models import control, recording
from sapo_desktop.services.models.figures import FORMATS, KINDS, FigureJob, figure_rows, write_figures
from sapo_desktop.services.models.shelf import history, keeping, mending, store
from sapo_desktop.services.models.shelf.overview import ModelOverview, format_gain, load_overview, tasks_of
from sapo_desktop.streams import confirm_action, json_line, print_progress
from sapo_swarm.node.checkpoints import folder_bytes
from sapo_swarm.node.training_count import TrainingCounts

ACTIONS = ("list", "show", "rename", "duplicate", "delete", "prune", "bases", "fetch", "figures")
_NAMES = {
    **{"list": 0, "show": 1, "rename": 2, "duplicate": 2, "delete": 1},
    **{"prune": 1, "bases": 0, "fetch": 1, "figures": 1},
}
"""The maximum number of names per action; rename, duplicate, delete and fetch need all of theirs."""
_BASE, _HELD_OUT = 24, 40
"""Maximum columns of a base and of a held-out result in the list."""


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """See the module's docstring."""
    parser.add_argument(
        "action",
        nargs="?",
        default="list",
        choices=ACTIONS,
        help="prune: remove older checkpoints; bases: models to start from; fetch: download one; figures: a run's figures "
        "as a file (default: list)",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="the model, and for rename and duplicate the new name; show and fetch also take a base: starter, a folder, a hub id",
    )
    parser.add_argument("--yes", action="store_true", help="delete and prune without asking")
    parser.add_argument(
        "--even-in-use", action="store_true", help="with delete: although other models start from an export of this one"
    )
    parser.add_argument("--json", action="store_true", help="list, show and bases as JSON lines")
    _add_figures_flags(parser)


def main(args: argparse.Namespace) -> int:
    """See the module's docstring; the exit code."""
    _check(args)
    home = Home.find()
    home.prepare()
    actions = {
        "list": _list,
        "show": _show,
        "delete": _delete,
        "prune": _prune,
        "bases": _bases,
        "fetch": _bases,
        "figures": export_figures,
    }
    if args.action in actions:
        return actions[args.action](home, args)
    model = store.find_model(home, args.names[0])
    change = keeping.rename_model if args.action == "rename" else keeping.duplicate_model
    done = change(home, model, args.names[1])
    verb = "is called" if args.action == "rename" else "was duplicated:"
    print(
        f"{model.name} {verb} {done.name}{' now' if args.action == 'rename' else ' has the same weights and history'}."
    )
    return 0


def _check(args: argparse.Namespace) -> None:
    high = _NAMES[args.action]
    low = high if args.action in ("rename", "duplicate", "delete", "fetch") else 0
    if not low <= len(args.names) <= high or "" in args.names:
        usage = {"rename": "OLD NEW", "duplicate": "NAME NEW", "fetch": "OWNER/NAME"}.get(
            args.action, "NAME" if high else ""
        )
        raise UsageError(f"Write: sapo-desktop models {args.action} {usage}".rstrip())


def _list(home: Home, args: argparse.Namespace) -> int:
    overviews = [load_overview(model) for model in store.all_models(home)]
    for line in (json_line(_as_json(one)) for one in overviews) if args.json else _table(overviews):
        print(line)
    damaged = store.unreadable_models(home)
    if not overviews and not damaged and not args.json:
        print("There is no model yet. Make one: sapo-desktop new my-model --base starter")
    for one in damaged:
        print(one.sentence, file=sys.stderr)
    return 0


def _table(found: Sequence[ModelOverview]) -> list[str]:
    """One line per model, each column as wide as its longest entry; words are left-aligned, numbers right-aligned."""
    lines = [_cells(overview) for overview in found]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numbers = (3, 4, 5)
    return [
        "  ".join(
            cell.rjust(width) if place in numbers else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in lines
    ]


def _cells(one: ModelOverview) -> tuple[str, ...]:
    model = one.model
    return (
        model.name,
        one.base if len(one.base) <= _BASE else f"{one.base[: _BASE - 1]}…",
        format_gain(one.held_out, _HELD_OUT, one.judged),
        str(one.trained),
        f"{_short(one.story.tokens)} tokens",
        size_text(one.size),
        _when(one.last_trained),
    )


def _short(count: int) -> str:
    if count >= 1_000_000:
        return f"{count / 1e6:,.1f} M"
    return f"{count / 1000:,.0f} k" if count >= 1000 else str(count)


def _when(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment)) if moment else "not trained yet"


def _as_json(one: ModelOverview) -> dict[str, object]:
    model = one.model
    return {
        "model": model.name,
        "base": model.record.base,
        "id": model.record.id,
        "folder": str(model.folder),
        "rounds": one.rounds,
        "trained": msgspec.to_builtins(one.trained),
        "tokens": one.story.tokens,
        "bytes": one.size,
        "last_trained": one.last_trained,
        "held_out": None if one.held_out is None else msgspec.to_builtins(one.held_out),
    }


def _bases(home: Home, args: argparse.Namespace) -> int:
    from sapo_desktop.commands.models import (
        bases,  # importing the size estimates takes longer than listing the models
    )

    return bases.list_bases(home, args) if args.action == "bases" else bases.fetch_base(home, args)


def _show(home: Home, args: argparse.Namespace) -> int:
    if args.names:
        from sapo_desktop.commands.models import bases

        if bases.is_base_name(home, args.names[0]):
            return bases.show_base(home, args)
    try:
        overview = load_overview(store.find_model(home, *args.names))
    except UsageError as error:
        if not args.names or not Path(args.names[0]).is_dir():
            raise
        raise UsageError(
            f"There is no model {args.names[0]!r}. A folder? Write {quote_command(f'./{args.names[0]}')}"
        ) from error
    if args.json:
        whole = {**_as_json(overview), "config": msgspec.to_builtins(overview.model.config)}
        whole["sessions"] = [msgspec.to_builtins(session) for session in overview.story.sessions]
        print(json_line(whole))
        return 0
    model, config = overview.model, overview.model.config
    print(f"{model.name}, from {model.record.base}\n")
    if lost := mending.missing_base_hint(model):
        print(f"{lost}\n")
    print(f"held-out    {format_gain(overview.held_out, judged=overview.judged)}{_since(overview)}")
    print(
        f"trained     {overview.trained}, {_short(overview.story.tokens)} tokens generated, {_when(overview.last_trained)}"
    )
    method, engine, algorithm = overview.trained_with
    print(f"on          {tasks_of(config)}, {algorithm}, method {method}, engine {engine}")
    if overview.story.computed:
        print(f"computed    {overview.story.computed}")
    print(f"on disk     {size_text(overview.size)} in {model.folder}")
    print(f"checkpoints {', '.join(str(store.rounds_of(path)) for path in model.checkpoints) or 'none yet'}")
    print("\nhistory" if overview.story.sessions else "")
    for session in overview.story.sessions:
        at = overview.story.counts.at(session.round)
        print(
            f"  {_when(session.time)}  {history.session_start(at):<27}  {session.mode:<5}  {history.describe_session(session)}"
        )
    if overview.story.problem:
        print(overview.story.problem, file=sys.stderr)
    return 0


def _since(one: ModelOverview) -> str:
    """How far training has continued since the held-out score."""
    if one.held_out is None or one.held_out.round == one.rounds:
        return ""
    return f", {one.story.counts.at(one.held_out.round).when}"


def _delete(home: Home, args: argparse.Namespace) -> int:
    model = store.find_model(home, args.names[0])
    if not args.even_in_use:
        mending.require_unused(home, model)
    training = asyncio.run(control.in_training(home))
    busy = training is not None and training.folder == model.folder
    size, stop = folder_bytes(model.folder), " It is being trained: the node is stopped first." if busy else ""
    if not confirm_action(
        args.yes, f"Delete {model.name} with all its weights, history and exports ({size_text(size)})?{stop}"
    ):
        return 1
    freed = asyncio.run(control.stop_and_delete_model(home, model))
    print(f"Deleted {model.name}: {size_text(freed)} are free again.")
    return 0


def _prune(home: Home, args: argparse.Namespace) -> int:
    models = [store.find_model(home, args.names[0])] if args.names else store.all_models(home)
    if not models:
        print("There is no model yet. Make one: sapo-desktop new NAME")
        return 0
    spares = [(model, keeping.spare_checkpoints(model, time.time())) for model in models]
    spares = [(model, spare) for model, spare in spares if spare]
    for model, spare in spares:
        count = f"{len(spare)} older checkpoint{'' if len(spare) == 1 else 's'}"
        print(f"{model.name}: {count}, {size_text(sum(checkpoint.size for checkpoint in spare))}")
    if not spares:
        print("There is nothing to free: each model has its newest and its best checkpoints only.")
        return 0
    if not confirm_action(args.yes, "Remove them? The newest and the best checkpoints of each model stay."):
        return 1
    print(f"{size_text(sum(keeping.remove_folders(spare) for _, spare in spares))} are free again.")
    return 0


# `sapo-desktop models figures NAME`: a run's metrics for other programs.


def _add_figures_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that only this action has."""
    formats = "; ".join(f"{name}: {what}" for name, what in FORMATS.items())
    parser.add_argument("--format", choices=list(FORMATS), default="csv", help=f"figures: {formats} (default: csv)")
    parser.add_argument("-o", "--output", type=Path, metavar="PATH", help="figures: the file to write")
    parser.add_argument("--force", action="store_true", help="figures: in the place of what lies there")


def export_figures(home: Home, args: argparse.Namespace) -> int:
    """Write the figures; the exit code. Raises UsageError, AppError, JournalError."""
    if args.output is None:
        raise UsageError("Say where to: sapo-desktop models figures NAME --format csv -o figures.csv")
    restore_shell_umask()
    name, path = recording.find_recording(home, *args.names)
    print_progress(0.0, "reading")
    events = recording.load_recording(path, (*KINDS, "checkpoint", "external")) if path.exists() else []
    rows = list(figure_rows(events))
    try:
        write_figures(args.format, FigureJob(name, rows, typed_target(args.output), args.force, print_progress))
    finally:
        print_progress(1.0, f"figures of {name}")
    print(f"Wrote the figures of {name}, {TrainingCounts.of(events).now} in {len(rows):,} rows, to {args.output}")
    if any(row.covers > 1 for row in rows):
        print(
            "Rounds of long ago are kept in blocks: covers says how many, counts and seconds are sums, figures means.",
            file=sys.stderr,
        )
    return 0
