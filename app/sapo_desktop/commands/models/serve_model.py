"""`sapo-desktop serve-model`: one of the models behind OpenAI's chat completions API, for programs on this machine."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from pathlib import Path

from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.checkpoints import SelectedWeights, select_weights

LARGEST_PORT = 65535


def add_arguments(parser: argparse.ArgumentParser, _verb: str) -> None:
    """See the module's docstring."""
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="the model (default: the one trained last)")
    parser.add_argument(
        "--checkpoint", default="latest", help="latest, base or a checkpoint's number (default: latest)"
    )
    parser.add_argument(
        "--port", type=int, default=8643, help="TCP port on 127.0.0.1; 0 = any free one (default: 8643)"
    )


def main(args: argparse.Namespace) -> int:
    """Exit code 0 after SIGINT or SIGTERM."""
    if not 0 <= args.port <= LARGEST_PORT:
        raise UsageError(f"--port is a number from 0 to {LARGEST_PORT}.")
    home = Home.find()
    home.prepare()
    asyncio.run(_serve(select_weights(home, args.name, args.checkpoint), args.port, home.config / "endpoint-token"))
    return 0


async def _serve(chosen: SelectedWeights, port: int, token_file: Path) -> None:
    """Load the model, serve until stopped, free the memory."""
    from sapo_desktop.services.models.endpoint import ChatEndpoint, ChatService, read_or_make
    from sapo_swarm.node.engine_thread import EngineThread
    from sapo_swarm.scoring.prompts import system_prompt

    stop, host = asyncio.Event(), EngineThread()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C ends the loop
            loop.add_signal_handler(number, stop.set)
    token = read_or_make(token_file)
    try:
        await host.load(lambda: chosen.load(lambda *_: None))
        config, trained = chosen.config, chosen.checkpoint is not None
        system = system_prompt(config.tasks, config.answer_format) if trained else ""
        answering = ChatService(host, config.temperature, system)
        name = chosen.model if trained else config.model
        async with ChatEndpoint(answering, name, token, port) as endpoint:
            print(
                f"Serving {chosen.label} as {name!r}\nBase URL:  {endpoint.url}\nAPI key:   in {token_file}\n"
                "Only programs on this machine reach it. Ctrl-C stops it.",
                flush=True,
            )
            await stop.wait()
    finally:
        await host.close()
