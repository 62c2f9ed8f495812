"""`python -m sapo_lab`: run experiments with many nodes in one process, and report on them."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sapo_backends.base import Engine
from sapo_backends.packages import install_command
from sapo_desktop.errors import AppError, UsageError, exit_code_of
from sapo_desktop.paths import Home, restore_shell_umask, set_private_umask
from sapo_desktop.services.nodes.supervisor import NodeLock
from sapo_lab import TASKS, list_experiments, processes
from sapo_lab.running.run import PieceOver, RunProgress, run_arm, run_folder
from sapo_lab.schema import Arm, Experiment, describe_conditions, load_experiment
from sapo_swarm.config import RunConfig
from sapo_swarm.tasks.own import library

_LINE_S = 10.0
"""Minimum seconds between two progress lines of a run."""


def build_parser() -> argparse.ArgumentParser:
    """The command line of the lab."""
    parser = argparse.ArgumentParser(prog="python -m sapo_lab", description=__doc__)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    run = actions.add_parser("run", help="run an experiment; what was done before is not done again")
    run.add_argument("experiment", help="a TOML file, or a name from `list`")
    run.add_argument("--only", default="", metavar="ARM[,ARM]", help="only these arms (default: all)")
    run.add_argument("--seeds", default="", metavar="N[,N]", help="only these seeds (default: the experiment's)")
    run.add_argument("--jobs", type=int, default=1, help="runs at the same time, a process each (default: 1)")
    run.add_argument("--out", type=Path, default=None, help="where journals go (default: the data folder)")
    run.add_argument("--device", default="", help="cpu, cuda, mps: run all arms there (default: the experiment's)")
    run.add_argument(
        "--model", default="", help="a folder or a hub id: run all arms with it (default: the experiment's)"
    )
    run.add_argument(
        "--minutes",
        type=float,
        default=0.0,
        help="stop after so many, saved; the same command goes on (default: never)",
    )
    run.add_argument("--fresh", action="store_true", help="throw away what these arms and seeds have so far")
    run.add_argument(processes.ENDS_WITH_PARENT, action="store_true", help=argparse.SUPPRESS)
    report = actions.add_parser(
        "report", help="tables and figures from the journals: HTML, Markdown, PNG; what they say is kept there too"
    )
    report.add_argument("experiment", help="a TOML file, or a name from `list`")
    report.add_argument("--out", type=Path, default=None, help="where the journals are (default: the data folder)")
    report.add_argument(
        "--to",
        type=Path,
        default=None,
        help="where the report goes; runs kept there count too (default: beside the journals)",
    )
    listing = actions.add_parser("list", help="the experiments, and how far each one is here")
    listing.add_argument("--out", type=Path, default=None, help="where the journals are (default: the data folder)")
    actions.add_parser("keys", help="what an arm may set besides the settings of a run")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Parse and run; returns the exit code."""
    try:
        return run_action(build_parser().parse_args(list(arguments)))
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        code = exit_code_of(error)
        if code is None:
            raise
        print(f"sapo_lab: {error}", file=sys.stderr)
        return code


def run_action(args: argparse.Namespace) -> int:
    """The exit code. Raises UsageError, AppError, BadExperiment."""
    library.set_task_folder(TASKS)
    if args.action == "list":
        return _list(args.out)
    if args.action == "keys":
        return _print_keys()
    if args.out or vars(args).get("to"):
        restore_shell_umask()
    file = find_experiment(args.experiment)
    experiment = load_experiment(file)
    out = (args.out or Home.find().data / "lab") / experiment.name
    if args.action == "report":
        return _report(experiment, file, out, args.to or out / "report")
    chosen = plan_runs(override_settings(experiment, device=args.device, model=args.model), args.only, args.seeds)
    if args.minutes < 0 or (args.minutes and args.jobs > 1):
        raise UsageError("--minutes is not negative, and goes with one job.")
    if args.jobs < 1:
        raise UsageError("--jobs is at least 1.")
    if args.jobs > 1 and len(chosen) > 1:
        commands = [(f"{arm.name} seed {seed}", _command(file, arm, seed, args)) for arm, seed in chosen]
        asyncio.run(processes.run_all(commands, args.jobs))
        return 0
    if args.ends_with_parent:
        processes.end_with_parent()
    asyncio.run(_in_turn(experiment, chosen, out, args.fresh, args.minutes))
    return 0


def find_experiment(name: str) -> Path:
    """The registered experiment of that name, or the file. Raises UsageError."""
    registered = list_experiments()
    if name in registered:
        return registered[name]
    if not Path(name).is_file():
        raise UsageError(f"There is no experiment {name!r}. There are {', '.join(registered)}; or give a TOML file.")
    return Path(name)


def override_settings(experiment: Experiment, **settings: str) -> Experiment:
    """The experiment with these settings in all arms; "" leaves a setting unchanged. Raises UsageError."""
    overrides = {name: value for name, value in settings.items() if value}
    if "model" in overrides and any(arm.conditions.models for arm in experiment.arms):
        raise UsageError(
            f"{experiment.name} has several models in one swarm: --model does not say which one to replace."
        )
    replace = msgspec.structs.replace
    return replace(experiment, arms=tuple(replace(arm, run=replace(arm.run, **overrides)) for arm in experiment.arms))


def plan_runs(experiment: Experiment, only: str, seeds: str) -> list[tuple[Arm, int]]:
    """The requested runs, all arms of a seed before the next seed. Raises BadExperiment, UsageError."""
    arms = [experiment.arm(name) for name in only.split(",")] if only else list(experiment.arms)
    try:
        numbers = [int(seed) for seed in seeds.split(",")] if seeds else list(experiment.seeds)
    except ValueError:
        raise UsageError(f"--seeds are whole numbers, not {seeds!r}.") from None
    if any(number < 0 for number in numbers):
        raise UsageError("--seeds are not negative.")
    return [(arm, seed) for seed in numbers for arm in arms]


@dataclass
class _Lines:
    """Prints progress on rounds at most every _LINE_S seconds, and everything else at once."""

    last: float = -_LINE_S

    def __call__(self, progress: RunProgress) -> None:
        now = time.monotonic()
        if now - self.last >= _LINE_S or progress.what != "round":
            self.last = now
            print(progress.sentence(), flush=True)


async def _in_turn(
    experiment: Experiment, chosen: list[tuple[Arm, int]], out: Path, fresh: bool, minutes: float
) -> None:
    from sapo_desktop.services.machine.engines import engine_builder
    from sapo_swarm.scoring.scorer import Scorer

    def build(config: RunConfig) -> Engine:
        return engine_builder(config)(lambda *_: None)

    began = time.monotonic()
    async with Scorer() as scorer:
        for arm, seed in chosen:
            minutes_left = max(minutes - (time.monotonic() - began) / 60, 1e-3) if minutes else 0.0
            try:
                with _locked(out, arm, seed):
                    done = await run_arm(experiment, arm, seed, out, scorer, build, _Lines(), fresh, minutes_left)
            except PieceOver as piece:
                print(f"{piece} The {minutes:g} minutes are over: run the same command again to go on.", flush=True)
                return
            print(
                f"{arm.name} seed {seed}: {done.rounds} rounds, {done.tokens:,} tokens, {done.wall_s / 60:.1f} min, "
                f"in {run_folder(out, arm.name, seed)}",
                flush=True,
            )


def _locked(out: Path, arm: Arm, seed: int) -> NodeLock:
    """The lock of a run, so that two processes never work on it."""
    locks = out / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    return NodeLock(locks / f"{arm.name}-{seed}", f"{arm.name} seed {seed} is already running (process {{holder}}).")


def _command(file: Path, arm: Arm, seed: int, args: argparse.Namespace) -> list[str]:
    command = ["run", str(file), "--only", arm.name, "--seeds", str(seed)]
    for name in ("device", "model"):
        command += [f"--{name}", getattr(args, name)] if getattr(args, name) else []
    return command + (["--out", str(args.out)] if args.out else []) + (["--fresh"] if args.fresh else [])


def _list(out: Path | None) -> int:
    folder = out or Home.find().data / "lab"
    for name, file in list_experiments().items():
        experiment = load_experiment(file)
        runs = [(arm.name, seed) for arm in experiment.arms for seed in experiment.seeds]
        done = sum((run_folder(folder / name, *run) / "done.json").exists() for run in runs)
        print(f"{name:<20} {len(experiment.arms):>2} arms x {len(experiment.seeds)} seeds, {done}/{len(runs)} done  ")
        print(f"{'':<20} {experiment.question}")
    return 0


def _report(experiment: Experiment, file: Path, out: Path, to: Path) -> int:
    from sapo_lab.report.page import write_report

    try:
        paths: Iterable[Path] = write_report(experiment, out, to, f"python -m sapo_lab run {file.stem}")
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise AppError(f"The report draws with matplotlib. Fix: {install_command('matplotlib')}") from error
    for path in paths:
        print(path)
    return 0


def _print_keys() -> int:
    for name, text, default in describe_conditions():
        print(f"{name} = {default!r}\n    {text}")
    return 0


if __name__ == "__main__":
    set_private_umask()
    sys.exit(main(sys.argv[1:]))
