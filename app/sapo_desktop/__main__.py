"""`sapo-desktop` and `python -m sapo_desktop`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; the exit code."""
    from sapo_desktop.cli import run
    from sapo_desktop.streams import prepare

    prepare()
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
