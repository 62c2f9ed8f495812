"""`sapo-desktop bench`: how fast this machine is with a model, and which engine its runs should use."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from sapo_backends.base import LoadRequest
from sapo_backends.errors import BackendError, BackendUnavailable
from sapo_backends.measure.choice import EngineCandidate, EngineMeasurement, choose_engine
from sapo_backends.measure.machine_limits import MachineLimits
from sapo_desktop import settings
from sapo_desktop.paths import Home
from sapo_desktop.services.bases import fetching, question_tokens
from sapo_desktop.services.machine import engines, load_request, memory_plan, speed
from sapo_desktop.services.machine.speed import BenchSubject
from sapo_desktop.settings import flags
from sapo_desktop.streams import json_line, overwrite_line
from sapo_swarm.config import RunConfig

if TYPE_CHECKING:
    from sapo_backends.measure.self_check import CheckResult

_QUICK_S = 0.5
_LOOK_S = 0.5
_TESTED = ("torch", "mlx", "llamacpp")
"""Engines that --verify compares, if installed: those that read model folders."""
_FLAGS = ("trainer", "method", "precision", "device", "threads", "lora_rank")
_ABOUT = """\
Each engine that is installed here generates and trains for about two seconds
(longer with large models), in each precision and with 1, 2, 4, ... threads up
to the number of cores; those that come near the fastest, twice. The fastest
whole round wins, and new runs use it from then on. Nothing is trained for good
and no run is touched. Close what keeps the machine busy; if a node is training,
pause it first: sapo-desktop pause

What the columns mean:
  1, 8, 64 wide  tokens generated a second when so many answers are written at
                 once: a chat, a group, a round
  training       tokens trained on a second
  memory         the most that the measuring process held
  round          seconds a round of your settings would take at these rates
  of the limit   the same, as a share of what this machine's arithmetic and
                 memory allow at most"""


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The verb's own arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"{_ABOUT}\n\n{parser.epilog}"
    parser.add_argument(
        "model",
        nargs="?",
        default=argparse.SUPPRESS,
        metavar="MODEL",
        help="starter, starter-1m, a folder, or a hub id (default: the settings')",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--verify", action="store_true", help="instead of measuring, test that each engine computes the right thing"
    )
    parser.add_argument(
        "--quick", action="store_true", help="half a second each, only with all threads; new runs take no notice"
    )
    parser.add_argument(
        "--anyway", action="store_true", help="new runs use the choice even if the machine was too busy to tell"
    )
    flags.add_run_flags(parser, _FLAGS)


def main(args: argparse.Namespace) -> int:
    """The exit code. Raises UsageError, AppError, BackendError."""
    home = Home.find()
    home.prepare()
    config = flags.run_config(settings.load_settings(home.settings), args, fetching.fetch_base_metadata)
    available = _available(config)
    try:
        if args.verify:
            return _verify(config, available, args.json)
        asyncio.run(_warn(home))
        return _bench(home, config, available, args)
    finally:
        _progress("")  # after Ctrl+C the prompt starts on a clean line


def _available(config: RunConfig) -> list[str]:
    """Engines that can run here, pairs included. Raises BackendUnavailable if the requested one cannot."""
    from sapo_backends import registry

    engines.choose_trainer(config)
    names = []
    for name in registry.known_backends():
        try:
            registry.get_backend(name).check()
        except BackendUnavailable:
            continue
        names.append(name)
    return names


async def _warn(home: Home) -> None:
    from sapo_desktop.services.nodes.supervisor import query_status

    status = await query_status(home)
    if status is not None and status.state == "running":
        _note("A node is training at the same time, so every figure will be too low. Pause it: sapo-desktop pause")


def _bench(home: Home, config: RunConfig, available: Sequence[str], args: argparse.Namespace) -> int:
    busy = _busy()
    subject = _subject(home, config, available)
    if not args.json:
        print("\n".join(speed.bench_header(subject)), end="\n\n")
        print("\n".join(speed.table_header()), flush=True)
    measured: dict[EngineCandidate, EngineMeasurement] = {}
    for measurement in _measurements(subject, config, available, args.quick):
        again = measurement.candidate in measured
        measured[measurement.candidate] = measurement
        if not args.json:
            print("\n".join(speed.candidate_lines(subject, measurement, again=again)), flush=True)
    results = list(measured.values())
    choice = choose_engine(results, subject.workload, speed.engine_preference(config))
    saved = not args.quick and (args.anyway or not speed.too_busy(busy, subject.machine))
    if choice is not None and saved:
        speed.save_measurements(home, config, results)
    plan = memory_plan.plan_round_memory(config, prompt=question_tokens.mean_prompt(home, config))
    if args.json:
        memory = {"needed": plan.needed, "available": plan.available} if plan else None
        for line in speed.bench_json_objects(subject, results, choice, memory, busy):
            print(json_line(line))
    else:
        memory_sentence = plan.sentence + ("" if plan.fits else f". {plan.suggestion}") if plan else ""
        print()
        print("\n".join(speed.bench_footer(subject, choice, memory_sentence, busy, kept=saved)))
    return 0 if any(not measurement.failure for measurement in results) else 1


def _busy() -> float:
    """How many processors other programs are keeping busy."""
    import psutil

    return psutil.cpu_percent(interval=_LOOK_S) / 100 * (psutil.cpu_count() or 1)


def _subject(home: Home, config: RunConfig, available: Sequence[str]) -> BenchSubject:
    """Inspect the machine and the model; downloads a hub model. Raises ModelNotFound."""
    from sapo_backends.checkpoints import locate
    from sapo_backends.common import hardware
    from sapo_backends.measure.precision import model_size

    size, method = None, config.method
    if engines.choose_trainer(config).rpartition("+")[2] in _TESTED:
        size, method = model_size(
            locate.resolve_model(config.model, _download), load_request.build_load_request(config)
        )
    limits: dict[str, MachineLimits] = {}
    for name in ("mlx", "torch"):
        if name in available and config.trainer.rpartition("+")[2] in ("auto", name) and _sensible(name, config):
            _progress(f"the machine's limits by {name}")
            limits[name] = speed.machine_limits(home, config, name, again=True)
    _progress("")
    machine = hardware.detect_hardware()
    return BenchSubject(
        config.model, method, size, machine, hardware.processor_name(), limits, speed.round_workload(config)
    )


def _sensible(engine: str, config: RunConfig) -> bool:
    return engine != "mlx" or engines.apple_silicon() or config.trainer.endswith("mlx")


def _measurements(
    subject: BenchSubject, config: RunConfig, available: Sequence[str], quick: bool
) -> Iterator[EngineMeasurement]:
    """Yields each candidate's measurement when it is done: trainers first, then pairs, then the best ones again."""
    from sapo_backends.common import hardware
    from sapo_backends.measure import choice, probe

    wanted, work = speed.engine_preference(config), subject.workload
    gpu = subject.limits.get("torch", MachineLimits()).device == "cuda" and config.device != "cpu"
    results: dict[EngineCandidate, EngineMeasurement] = {}

    def measure(waiting: Sequence[EngineCandidate], doing: str) -> Iterator[EngineMeasurement]:
        for number, candidate in enumerate(waiting, 1):
            _progress(f"{doing} {candidate} ({number} of {len(waiting)})")
            measured = probe.in_child(
                candidate, load_request.build_load_request(config), _QUICK_S if quick else probe.SECONDS
            )
            _progress("")
            results[candidate] = (
                choice.merge_measurements(results[candidate], measured) if candidate in results else measured
            )
            yield results[candidate]

    apple, threads = engines.apple_silicon(), hardware.default_threads()
    fast = hardware.detect_hardware().fast_bfloat16
    singles = choice.list_candidates(
        available, threads, wanted, apple=apple, gpu=gpu, bfloat16=fast, trains=work.trains
    )
    if quick:
        singles = [c for c in singles if c.threads in (0, max(s.threads for s in singles))]
    yield from measure(singles, "measuring")
    yield from measure(choice.list_pair_candidates(available, list(results.values()), work, wanted), "measuring")
    if not quick:
        yield from measure(choice.find_finalists(list(results.values()), work), "measuring again")


def _verify(config: RunConfig, available: Sequence[str], as_json: bool) -> int:
    """Compare each engine with a second one, check by check; exit code 1 if a check failed."""
    second = "torch" if "torch" in available else engines.choose_trainer(config)
    names = [config.trainer] if config.trainer != "auto" else [n for n in _TESTED if n in available]
    failed = False
    if not as_json:
        print(f"{config.model}, compared with {second} in float32 on the processor, without its fast paths")
    for name in (n for n in names if _sensible(n, config)):
        _progress(f"verifying {name}")
        checks = _checks(name, second, load_request.build_load_request(config))
        _progress("")
        for check in checks:
            failed |= not check.passed
            if as_json:
                print(json_line({"kind": "check", "engine": name, **asdict(check)}), flush=True)
            else:
                print(f"{'pass' if check.passed else 'FAIL'}  {name:<9} {check.name}: {check.figure}", flush=True)
    if not as_json:
        print("Something is wrong: do not train with it here, and please report it." if failed else "All is well.")
    return 1 if failed else 0


def _checks(name: str, second: str, request: LoadRequest) -> list[CheckResult]:
    """The results of all checks; an engine that does not load counts as one failed check."""
    from sapo_backends import registry
    from sapo_backends.measure.self_check import CheckResult, verify_engine

    try:
        return verify_engine(registry.get_backend(name), registry.get_backend(second), _to_verify(request, name))
    except BackendError as error:
        return [CheckResult("the engine loads", False, str(error))]


def _to_verify(request: LoadRequest, engine: str) -> LoadRequest:
    """The request with training turned off for llama.cpp, which cannot train."""
    return replace(request, method="none") if engine == "llamacpp" else request


def _download(_fraction: float, phrase: str) -> None:
    _progress(phrase)


def _note(text: str) -> None:
    print(f"sapo-desktop: {text}", file=sys.stderr, flush=True)


def _progress(doing: str) -> None:
    """Show the current step, see overwrite_line; without a terminal each step is printed on a separate line."""
    overwrite_line(doing and f"{doing} ...")
    if doing and not sys.stderr.isatty():
        print(doing, file=sys.stderr, flush=True)
