"""`sapo-desktop config get|set|path`."""

from __future__ import annotations

import argparse

import msgspec

from sapo_desktop import settings
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.add_argument("action", choices=["get", "set", "path"])
    parser.add_argument("key", nargs="?", default="", help="such as run.rounds; without it, everything")
    parser.add_argument("value", nargs="?", help="the new value; lists are separated by commas")


def main(args: argparse.Namespace) -> int:
    home = Home.find()
    if args.action == "path":
        print(home.settings)
        return 0
    known = {f.key: f for f in settings.fields()}
    if args.key and args.key not in known:
        raise UsageError(f"There is no setting {args.key!r}. {settings.nearest(args.key, set(known))}")
    if args.action == "set":
        if not args.key or args.value is None:
            raise UsageError("Write: sapo-desktop config set KEY VALUE")
        changed = settings.change(home.settings, args.key, args.value)
        print(f"{args.key} = {_value(changed, args.key)}")
        return 0
    current = settings.load(home.settings)
    for key, field in known.items():
        if args.key in {"", key}:
            mark = "" if _value(current, key) == _plain(field.default) else f"   (default {_plain(field.default)})"
            note = f"   # {field.help}" if args.key == "" else ""
            print(f"{key} = {_value(current, key)}{mark}{note}" if args.key == "" else _value(current, key))
    return 0


def _value(current: settings.Settings, key: str) -> str:
    section, _, name = key.partition(".")
    return _plain(getattr(getattr(current, section), name))


def _plain(value: object) -> str:
    built = msgspec.to_builtins(value)
    return ",".join(map(str, built)) if isinstance(built, (list, tuple)) else str(built)
