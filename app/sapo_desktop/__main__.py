"""`sapo-desktop` and `python -m sapo_desktop`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    if sys.argv[1:] == ["--scorer-worker"]:  # how a frozen app starts its worker, as it cannot run `python -m`
        from sapo_swarm.scoring.worker import serve_and_exit

        serve_and_exit()
    if sys.argv[1:2] == ["--inspect-model"] and len(sys.argv) == 3:
        from sapo_backends.checkpoints import inspection_child

        return inspection_child.main(sys.argv[2])
    from sapo_desktop.commands.parsing import hide_typed_invite

    hide_typed_invite()
    from sapo_desktop.cli import run_command_line
    from sapo_desktop.paths import set_private_umask
    from sapo_desktop.streams import prepare_streams

    set_private_umask()
    prepare_streams()
    return run_command_line(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
