"""`python -m sapo_swarm.coordinator --host --port --store --name --open`: the coordinator without the app."""

from __future__ import annotations

import argparse
import asyncio
import sys

import msgspec

from sapo_swarm.coordinator.host import serve
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.coordinator.store.base import StoreError


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 stopped, 1 error, 2 usage. Every setting is a flag."""
    parser = argparse.ArgumentParser(prog="sapo_swarm.coordinator", description=__doc__)
    for field in msgspec.structs.fields(CoordinatorSettings):
        flag = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(flag, dest=field.name, action=argparse.BooleanOptionalAction)
        else:
            parser.add_argument(flag, dest=field.name, metavar=field.name.upper())
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    for name in ("tasks", "presets"):
        if name in given:
            given[name] = tuple(given[name].split(","))
    try:
        settings = msgspec.convert(given, CoordinatorSettings, strict=False)
        asyncio.run(serve(settings))
    except msgspec.ValidationError as error:
        parser.error(str(error))
    except (StoreError, OSError) as error:
        print(f"The coordinator cannot start: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
