"""`sapo-desktop verifiers`: one of your models in an environment of the `verifiers` package."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from pathlib import Path

import msgspec

from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home, typed_path
from sapo_desktop.services.models.checkpoints import SelectedWeights, select_weights
from sapo_desktop.services.tasks.bridge.running import BridgeJob, BridgeMessage, EnvironmentResult, run_environment
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.types import UNREADABLE

SHOWN = 400
LARGEST = 1000


def add_arguments(parser: argparse.ArgumentParser, _verb: str) -> None:
    """See the module's docstring."""
    parser.add_argument("environment", help="a package with load_environment(), or module:Class")
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="the model (default: the one trained last)")
    parser.add_argument("--checkpoint", default="latest", help="latest, base or a round number (default: latest)")
    parser.add_argument(
        "--python", default="", metavar="FILE", help="the environment's own Python, which has verifiers"
    )
    parser.add_argument(
        "--arg", action="append", default=[], metavar="KEY=VALUE", help="an argument of the environment, JSON or text"
    )
    parser.add_argument("--items", type=int, default=16, help="examples of the environment (default: 16)")
    parser.add_argument("--samples", type=int, default=1, help="rollouts of each (default: 1)")
    parser.add_argument("--minutes", type=float, default=30.0, help="end it after so long (default: 30)")


def main(args: argparse.Namespace) -> int:
    """Exit code 0 if every rollout has a reward, 1 if some failed."""
    if not (1 <= args.items <= LARGEST and 1 <= args.samples <= LARGEST):
        raise UsageError(f"--items and --samples are numbers from 1 to {LARGEST}.")
    if not 0 < args.minutes <= LARGEST:
        raise UsageError(f"--minutes is a number above 0, at most {LARGEST}.")
    home = Home.find()
    home.prepare()
    inside = Path("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    python = typed_path(args.python) if args.python else home.data / "verifiers" / inside
    result = asyncio.run(_play(select_weights(home, args.name, args.checkpoint), python, args))
    print(
        f"{args.environment} (verifiers {safe_text(result.version, 20, lines=False)}): mean reward {result.mean:.3f} over "
        f"{len(result.rewards)} rollouts{f', {result.failed} failed' if result.failed else ''}. "
        "The environment's own reward; nothing was trained."
    )
    return 1 if result.failed or not result.rewards else 0


def parse_environment_args(pairs: list[str]) -> dict[str, object]:
    """KEY=VALUE pairs as keyword arguments; a value that is not JSON is text. Raises UsageError."""
    arguments: dict[str, object] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key.isidentifier():
            raise UsageError(f"--arg is KEY=VALUE, such as --arg gym=basic_arithmetic, not {pair!r}.")
        try:
            arguments[key] = msgspec.json.decode(value)
        except UNREADABLE:
            arguments[key] = value
    return arguments


async def _play(chosen: SelectedWeights, python: Path, args: argparse.Namespace) -> EnvironmentResult:
    """Serve the model on a private endpoint and run the environment against it."""
    from sapo_desktop.services.models.endpoint import ChatEndpoint, ChatService
    from sapo_swarm.node.engine_thread import EngineThread

    arguments, config, token, host = (
        parse_environment_args(args.arg),
        chosen.config,
        secrets.token_urlsafe(32),
        EngineThread(),
    )
    try:
        await host.load(lambda: chosen.load(lambda *_: None))
        async with ChatEndpoint(ChatService(host, config.temperature), "model", token) as endpoint:
            job = BridgeJob(
                environment=args.environment,
                arguments=arguments,
                url=endpoint.url,
                token=token,
                model="model",
                items=args.items,
                samples=args.samples,
                temperature=config.temperature,
                max_tokens=config.max_new_tokens,
            )
            print(f"{chosen.label} plays {args.environment} …", flush=True)
            return await run_environment(python, job, _show, 60.0 * args.minutes)
    finally:
        await host.close()


def _show(told: BridgeMessage) -> None:
    text = f"failed: {told.error}" if told.error else f"reward {told.reward:.3f}  {told.completion}"
    print(safe_text(text, SHOWN, lines=False), flush=True)
