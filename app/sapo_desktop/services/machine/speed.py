"""Measurements on this machine, by `sapo-desktop bench` or at a model's first load: stored for later runs, and reported."""

from __future__ import annotations

import contextlib
import hashlib
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from sapo_backends.common import hardware
from sapo_backends.common.hardware import Hardware
from sapo_backends.common.round_memory import ModelSize
from sapo_backends.errors import ModelNotFound, size_text
from sapo_backends.measure import choice
from sapo_backends.measure.choice import (
    WIDTHS,
    EngineChoice,
    EngineMeasurement,
    EnginePreference,
    RoundWorkload,
    format_seconds,
    round_seconds,
)
from sapo_backends.measure.machine_limits import MachineLimits, most_generated, most_trained
from sapo_backends.measure.precision import model_size
from sapo_desktop.paths import Home
from sapo_desktop.services.machine import load_request
from sapo_swarm.algorithms import TINY, local_groups
from sapo_swarm.config import RunConfig
from sapo_swarm.whole_file import write_atomically

# Measurements on this machine, by `sapo-desktop bench` or at a model's first load, stored for later runs in
# cache/speed.json.
#
# Measurements hold for a processor, its cores, the versions of the engines, and a model of that shape trained that way.
# A file that is damaged, or from another machine, counts as none: then everything works as if nothing was measured.

FORMAT = 1
MAX_MODELS = 32
"""Models whose measurements are kept."""
MAX_ROUNDS = 20
"""Rounds kept per model, the newest ones."""
_NO_TIME = frozenset(
    {
        *("model", "method", "device", "lora_rank", "seed", "rounds", "learning_rate", "final_rate", "tripwire"),
        *("eval_every", "eval_items", "checkpoint_minutes", "checkpoint_every"),
        *("disk_budget_gb", "keep_groups", "keep_checkpoints"),
    }
)
"""Settings that do not affect a round's time, or that are in the key."""
_PACKAGES = ("sapo-desktop", "torch", "mlx", "mlx-lm", "llama-cpp-python")


def load_measurements(home: Home, config: RunConfig) -> list[EngineMeasurement]:
    """The measurements for such a run on this machine; empty when there are none."""
    entry = _read(home).get(_key(config))
    try:
        return choice.decode_measurements(entry["measured"]) if isinstance(entry, dict) else []
    except (KeyError, ValueError):
        return []


def save_measurements(home: Home, config: RunConfig, measured: Sequence[EngineMeasurement]) -> None:
    """Keep measurements; older ones of other candidates stay. Raises OSError."""
    candidates = {m.candidate: m for m in (*load_measurements(home, config), *measured)}
    _update(home, config, {"measured": choice.encode_measurements(list(candidates.values())), "rounds": None})


def recent_round_seconds(home: Home, config: RunConfig) -> list[float]:
    """Seconds of the newest rounds that ran here with the settings that affect them; empty where none did."""
    entry = _read(home).get(_key(config))
    try:
        rounds = entry["rounds"] if isinstance(entry, dict) else {}
        return [float(value) for value in rounds["seconds"]] if rounds["of"] == _of_round(config) else []
    except (KeyError, TypeError, ValueError):
        return []


def remember_rounds(home: Home, config: RunConfig, seconds: Sequence[float]) -> None:
    """Keep how long the rounds of a session took. Raises OSError."""
    if seconds:
        newest = [*recent_round_seconds(home, config), *seconds][-MAX_ROUNDS:]
        _update(home, config, {"rounds": {"of": _of_round(config), "seconds": newest}})


def _of_round(config: RunConfig) -> dict[str, Any]:
    """The settings that affect a round's time and are not in the key, as JSON returns them."""
    fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    return {name: value for name, value in fields.items() if name not in _NO_TIME}


def precision_seconds(home: Home, config: RunConfig) -> dict[str, float]:
    """Seconds by precision, measured at the first load of such a model here; empty when there are none."""
    entry = _read(home).get(_key(config))
    seconds = entry.get("precision") if isinstance(entry, dict) else None
    if not isinstance(seconds, dict):
        return {}
    return {str(name): float(value) for name, value in seconds.items() if isinstance(value, int | float) and value > 0}


def remember_precision(home: Home, config: RunConfig, seconds: Mapping[str, float]) -> None:
    """Keep the result of measure_precisions. Raises OSError."""
    _update(home, config, {"precision": dict(seconds)})


def _update(home: Home, config: RunConfig, change: dict[str, Any]) -> None:
    """Change the entry for such a run, which becomes the newest."""
    entries, key = _read(home), _key(config)
    old = entries.pop(key, None)
    entries[key] = {"measured": [], **(old if isinstance(old, dict) else {}), **change, "model": config.model}
    newest = dict(list(entries.items())[-MAX_MODELS:])
    write_atomically(_file(home), json.dumps({"format": FORMAT, "machine": _machine(), "entries": newest}))


def round_workload(config: RunConfig) -> RoundWorkload:
    """The size of the run's rounds, as far as the settings tell without the model."""
    groups = local_groups(config, load_request.parameter_count(config) or TINY) + config.external_groups
    return RoundWorkload(groups * config.group_size, config.max_new_tokens, config.method != "none")


def choose_fastest(home: Home, config: RunConfig) -> EngineChoice | None:
    """The fastest measured candidate within what the settings leave open; None without a measurement."""
    measured = load_measurements(home, config)
    return choice.choose_engine(measured, round_workload(config), engine_preference(config)) if measured else None


def engine_preference(config: RunConfig) -> EnginePreference:
    """What the settings leave open and what they fix."""
    return EnginePreference(config.trainer, config.precision, config.threads)


def known_limits(home: Home, config: RunConfig, engine: str = "torch") -> MachineLimits:
    """What machine_limits measured earlier; empty where it did not."""
    return _stored_limits(home.cache / f"limits-{engine}.json", _conditions(config))


def machine_limits(home: Home, config: RunConfig, engine: str = "torch", *, again: bool = False) -> MachineLimits:
    """The best that this machine can do with that engine's library, measured once, in a few seconds; empty where it cannot be
    measured.

    again: measure now, even if known; the better figures stay, as nothing makes a machine faster than it is."""
    earlier = known_limits(home, config, engine)
    if earlier.read and not again:
        return earlier
    from sapo_backends.measure import probe

    conditions = _conditions(config)
    new_limits = probe.limits_in_child(engine, int(conditions["threads"]), config.device)
    if not new_limits.read:
        return earlier
    best = {kind: max(rate, earlier.multiply.get(kind, 0.0)) for kind, rate in new_limits.multiply.items()}
    limits = MachineLimits(best, max(new_limits.read, earlier.read), new_limits.device)
    with contextlib.suppress(OSError):
        write_atomically(home.cache / f"limits-{engine}.json", json.dumps({"of": conditions, **asdict(limits)}))
    return limits


def _conditions(config: RunConfig) -> dict[str, Any]:
    """What the limits were measured with."""
    threads = config.threads or hardware.default_threads()
    return {"format": FORMAT, "machine": _machine(), "threads": threads, "device": config.device}


def _stored_limits(path: Path, wanted: dict[str, Any]) -> MachineLimits:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads(path.read_text("utf-8"))
        if stored["of"] == wanted:
            rates = {str(k): float(v) for k, v in stored["multiply"].items()}
            return MachineLimits(rates, float(stored["read"]), str(stored["device"]))
    return MachineLimits()


def _file(home: Home) -> Path:
    return home.cache / "speed.json"


def _machine() -> dict[str, Any]:
    machine = hardware.detect_hardware()
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "processor": hardware.processor_name(),
        "cores": machine.cores,
        "threads": hardware.default_threads(),
        "matrix_unit": machine.matrix_unit,
        "system": machine.system,
        "versions": versions,
    }


def _key(config: RunConfig) -> str:
    """The key of a model of that shape, trained that way. A model that is not here yet is identified by its name."""
    try:
        folder = load_request.local_folder(config)
        size, method = model_size(folder, load_request.build_load_request(config))
        shape: object = [asdict(size), method, (folder / "config.json").read_text("utf-8", "replace")]
    except (ModelNotFound, OSError):
        shape = [config.model, config.method]
    state = json.dumps([shape, config.device, config.lora_rank], sort_keys=True)
    return hashlib.sha256(state.encode()).hexdigest()[:24]


def _read(home: Home) -> dict[str, Any]:
    """The entries for this machine."""
    try:
        stored = json.loads(_file(home).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(stored, dict) or stored.get("format") != FORMAT or stored.get("machine") != _machine():
        return {}
    entries = stored.get("entries")
    return entries if isinstance(entries, dict) else {}


# The output of `sapo-desktop bench`: lines of text at most 80 columns wide, and JSON objects.

COLUMNS = 80
_BUSY = 0.5
"""Share of the cores in use by other programs that spoils a measurement."""


@dataclass(frozen=True, slots=True)
class BenchSubject:
    """What is measured and on what. size: None where the model's files do not tell. limits: by engine."""

    model: str
    method: str
    size: ModelSize | None
    machine: Hardware
    processor: str
    limits: Mapping[str, MachineLimits]
    workload: RoundWorkload


def too_busy(busy: float, machine: Hardware) -> bool:
    """Whether so many busy processors make a measurement meaningless."""
    return busy > _BUSY * machine.cores


def limit_shares(subject: BenchSubject, measured: EngineMeasurement) -> tuple[dict[int, float], float]:
    """Each rate as a fraction of the machine's own limit, at each width and for training; 0 where unknown."""
    size, limits = subject.size, subject.limits.get(measured.candidate.engine.rpartition("+")[2])
    if size is None or limits is None:
        return dict.fromkeys(measured.generation, 0.0), 0.0
    generating, _, training = measured.precision.rpartition(" + ")
    generated = {w: _share(r, most_generated(size, w, limits, generating or training)) for w, r in _rates(measured)}
    return generated, _share(measured.update, most_trained(size, limits, training))


def _rates(measured: EngineMeasurement) -> list[tuple[int, float]]:
    return sorted(measured.generation.items())


def _share(rate: float, most: float) -> float:
    return rate / most if most > 0 else 0.0


def bench_header(subject: BenchSubject) -> Iterator[str]:
    """The lines above the table."""
    machine, size = subject.machine, subject.size
    of = f": {size.parameters / 1e6:,.1f}M parameters, {_TRAINED[subject.method]}" if size else ""
    yield f"{subject.model}{of}"
    yield f"{subject.processor}, {machine.cores} core{'s' * (machine.cores > 1)}, {machine.matrix_unit}"
    for engine, limits in subject.limits.items():
        rates = ", ".join(f"{rate / 1e9:,.0f} GFLOP/s in {kind}" for kind, rate in limits.multiply.items())
        yield from _wrapped(f"Limits ({engine}): {rates}; reads {limits.read / 1e9:.0f} GB/s")


_TRAINED = {"full": "all of them trained", "lora": "a LoRA adapter trained", "none": "none trained"}


def table_header() -> Iterator[str]:
    """The two lines above the figures."""
    widths = "".join(f"{f'{w} wide':>9}" for w in WIDTHS)
    yield f"{'tokens/s':<27}{widths}{'training':>9}{'memory':>10}{'round':>7}"


def candidate_lines(subject: BenchSubject, measured: EngineMeasurement, *, again: bool = False) -> Iterator[str]:
    """A candidate's line, and one with the shares of the machine's limit where they are known.

    again: measured a second time; the better figures of both.
    """
    name = f"{measured.candidate}{'*' if again else ''}"
    if measured.failure:
        yield from _wrapped(f"{name:<27} failed: {measured.failure}")
        return
    generated, trained = limit_shares(subject, measured)
    rates = "".join(f"{measured.generation.get(w, 0):>9,.0f}" for w in WIDTHS)
    seconds = round_seconds(measured, subject.workload)
    update = f"{measured.update:,.0f}" if measured.update else "-"
    took = format_seconds(seconds) if seconds is not None else "-"
    yield f"{name:<27}{rates}{update:>9}{size_text(measured.memory):>10}{took:>7}"
    if trained or any(generated.values()):
        parts = "".join(f"{_percent(generated.get(w, 0)):>9}" for w in WIDTHS)
        yield f"{'  of the limit':<27}{parts}{_percent(trained):>9}".rstrip()
    if measured.computed_by:
        yield from _wrapped(f"  by {measured.computed_by}")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if 0 < share < 0.1 else f"{100 * share:.0f} %" if share else ""


def bench_footer(
    subject: BenchSubject, choice: EngineChoice | None, memory: str, busy: float, *, kept: bool
) -> Iterator[str]:
    """The lines below the table. kept: new runs will use the choice. busy: processors kept busy by other programs."""
    work = subject.workload
    update = " and an update on all of them" if work.trains else ""
    yield f"{'round':<14}{work.rows} completions of {work.new_tokens} tokens{update}"
    yield f"{'memory':<14}the most that the measuring process held"
    yield f"{'by':<14}which decoder and which of its implementations"
    yield f"{'of the limit':<14}share of what the machine's arithmetic and memory allow at most"
    yield f"{'*':<14}measured twice, being near the fastest; the better figures of both"
    yield ""
    if too_busy(busy, subject.machine):
        yield from _wrapped(
            f"Other programs kept about {busy:.1f} of {subject.machine.cores} cores busy when this began, so figures are "
            "too low and the choice is unsure. Measure again when the machine is quiet."
        )
    if memory:
        yield from _wrapped(f"Memory: {memory}.")
    if choice is None:
        yield from _wrapped("Nothing that trains was measured, so new runs keep the default engine.")
        return
    yield from _wrapped(f"{'Chosen' if kept else 'Fastest'}: {choice.candidate}, because {choice.reason}")
    if not kept:
        yield from _wrapped(
            "New runs take no notice of this: it was a quick look, or the machine was too busy (--anyway)."
        )
        return
    yield from _wrapped(
        "New runs with these settings use it; runs that have begun stay as they are. "
        "Your own settings go first: run.trainer, run.precision, run.threads."
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, COLUMNS, subsequent_indent="  ", break_on_hyphens=False)


def bench_json_objects(
    subject: BenchSubject,
    measured: Sequence[EngineMeasurement],
    choice: EngineChoice | None,
    memory: Mapping[str, int] | None,
    busy: float,
) -> Iterator[dict[str, Any]]:
    """The results as JSON objects, one per line; rates in tokens/s, sizes in bytes, shares of the limit from 0 to 1."""
    yield {
        "kind": "machine",
        "processor": subject.processor,
        "busy_processors": busy,
        **asdict(subject.machine),
        "limits": {engine: asdict(limits) for engine, limits in subject.limits.items()},
    }
    size = asdict(subject.size) if subject.size else {}
    yield {"kind": "model", "model": subject.model, "method": subject.method, **size}
    for measurement in measured:
        generated, trained = limit_shares(subject, measurement)
        yield {
            "kind": "measured",
            **asdict(measurement),
            "generation_of_limit": generated,
            "update_of_limit": trained,
            "round_seconds": round_seconds(measurement, subject.workload),
        }
    if memory:
        yield {"kind": "memory", **memory}
    yield {"kind": "choice", **(asdict(choice) if choice else {"candidate": None})}
