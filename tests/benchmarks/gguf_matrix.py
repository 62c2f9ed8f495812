"""Published GGUF files on every engine: load, tokens, log-probabilities, generation, training, export, and what the app foretold.

    python tests/benchmarks/gguf_matrix.py smollm2 [--engines torch llamacpp+torch mlx]
    python tests/benchmarks/gguf_matrix.py --forecast       # foretold anew, with today's rules, for what was measured
    python tests/benchmarks/gguf_matrix.py --table          # what was measured so far, as Markdown

A cell is a model (a name of packaging/real_models.py) on an engine, in fresh processes on one thread, one after the other:

    tokens      of TEXTS texts that splitting is hard for, how many become llama.cpp's tokens
    logprobs    the largest difference in nats of the engine in float32 from transformers in float32, on a page of English
    generate    a round of the trades table (own_tables.py) with the app's precision: tokens/s, seconds beside the forecast's
    train       the update of that round, and a step of the examples phase beside the forecast's
    memory      VmHWM after the round beside the app's plan for it
    export      the adapter as a GGUF file, used by llama.cpp on the person's own file: what the examples' answers gained there

Processor seconds count: other work on the machine does not lengthen them, and of one thread they are those of a quiet machine.
MLX on a processor gets a smaller round (ROUND): its products are some twenty times as slow there. A JSON line for each cell goes
to docs/benchmarks/gguf-matrix.jsonl; a part of it that is there is not measured again (--again: all of the cell is).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "packaging")]

from real_models import MODELS, path_of  # noqa: E402
from tests.benchmarks.own_tables import write_table  # noqa: E402
from tests.support.gguf_files import nasty_texts  # noqa: E402
from tests.support.person import Person, VerbFailed, processor  # noqa: E402

from sapo_backends.base import Completion, Engine, LoadRequest, PolicyUpdate, Sampling, TokenSequence, TrainSample  # noqa: E402

LINES = ROOT / "docs" / "benchmarks" / "gguf-matrix.jsonl"
ENGINES = ("torch", "llamacpp+torch", "mlx")
TEXTS = 1000
PAGE = 600
"""Characters of README.md whose log-probabilities are compared."""
ROUND = {"torch": (8, 8, 24, 16), "llamacpp+torch": (8, 8, 24, 16), "mlx": (2, 4, 8, 4)}
"""Engine -> groups, completions of each, most tokens of an answer; examples of a step."""
RATE = 1e-3
"""Of the step of examples."""
ANSWERS, ANSWER = 6, 12
"""Greedy answers compared after the export, and their most tokens."""
CELL_S = 3600
TASK = "t"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--again", action="store_true", help="measure cells that are there again")
    parser.add_argument("--forecast", action="store_true", help="foretell what was measured again, with today's rules")
    parser.add_argument("--table", action="store_true", help="print what was measured as Markdown")
    parser.add_argument("--part", nargs=4, metavar=("PART", "MODEL", "ENGINE", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        part, model, engine, file = arguments.part
        print(json.dumps(PARTS[part](path_of(model), engine, Path(file))))
        return
    if arguments.forecast:
        with tempfile.TemporaryDirectory() as home:
            os.environ["SAPO_HOME"] = home
            for line in kept_lines():
                foretell(line)
                keep(line)
    if arguments.table or arguments.forecast:
        print(markdown(kept_lines()))
        return
    if not arguments.models or not set(arguments.models) <= set(MODELS):
        parser.error(f"name models of {', '.join(MODELS)}, or --table")
    for model in arguments.models:
        for engine in arguments.engines:
            cells = (line for line in kept_lines() if (line["model"], line["engine"]) == (model, engine))
            there = {} if arguments.again else next(cells, {})
            missing = [part for part in PARTS if "failed" in there.get(part, {"failed": ""})]
            if missing:
                keep(measure(model, engine, there, missing))


def kept_lines() -> list[dict[str, Any]]:
    """What was measured so far."""
    return [json.loads(line) for line in LINES.read_text("utf-8").splitlines()] if LINES.exists() else []


def keep(line: dict[str, Any]) -> None:
    """In place of an earlier line of that cell."""
    others = [old for old in kept_lines() if (old["model"], old["engine"]) != (line["model"], line["engine"])]
    LINES.write_text("".join(f"{json.dumps(one)}\n" for one in [*others, line]), "utf-8")
    print(json.dumps(line), flush=True)


def measure(model: str, engine: str, there: dict[str, Any], missing: Sequence[str]) -> dict[str, Any]:
    """A cell, in a home of its own; a part that failed says so. there: what was measured of it, without what is missing."""
    if not path_of(model).is_file():
        raise SystemExit(f"{path_of(model)} is not there. Fix: python packaging/real_models.py {model}")
    line: dict[str, Any] = {**there, "model": model, "engine": engine}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        person = Person(folder / "home")
        table = write_table(folder, "trades")
        try:
            person.types("tasks", "new", str(table), "--name", TASK, "--no-model")
        except VerbFailed as error:
            raise SystemExit(f"The task was not made: {error}") from error
        for part in PARTS:
            if part not in missing and not (part == "reference" and "logprobs" in missing):
                continue
            began = time.monotonic()
            line[part] = _in_child(part, model, engine, folder, person.environment)
            print(f"{model}, {engine}, {part}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return line | {"processor": processor(), "day": datetime.now(UTC).date().isoformat()}


def _in_child(part: str, model: str, engine: str, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).resolve()), "--part", part, model, engine, str(folder / "page.json")]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=CELL_S, env={**environment, "OMP_NUM_THREADS": "1"}
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"longer than {CELL_S} s"}
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1][:300] if done.stderr.strip() else str(done.returncode)}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


# -- the parts, each in a process of its own -----------------------------------------------------------------------


def tokens(file: Path, _engine: str, _page: Path) -> dict[str, Any]:
    """How many of the texts the app splits as llama.cpp does; and the page's log-probabilities by transformers in float32."""
    import llama_cpp.llama_cpp as llama

    from sapo_backends.checkpoints import locate
    from sapo_backends.checkpoints.tokenizer import HfTokenizer

    parameters = llama.llama_model_default_params()
    parameters.vocab_only = True
    model = llama.llama_model_load_from_file(str(file).encode(), parameters)
    vocabulary, tokenizer = llama.llama_model_get_vocab(model), HfTokenizer(locate.resolve_model(str(file)))
    equal = 0
    for text in nasty_texts(TEXTS):
        data = text.encode()
        room = (ctypes.c_int32 * (len(data) + 8))()
        count = llama.llama_tokenize(vocabulary, data, len(data), room, len(room), False, False)
        equal += tokenizer.encode_text(text) == list(room[:count])
    return {"equal": equal, "texts": TEXTS}


def reference(file: Path, _engine: str, page: Path) -> dict[str, Any]:
    """The page's log-probabilities by transformers in float32, for the next part."""
    import torch
    import transformers

    from sapo_backends.checkpoints import locate
    from sapo_backends.checkpoints.tokenizer import HfTokenizer

    ids = HfTokenizer(locate.resolve_model(str(file))).encode_text((ROOT / "README.md").read_text("utf-8")[:PAGE])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, local_files_only=True
    )
    with torch.no_grad():
        rows = model(torch.tensor([ids])).logits[0, :-1].double().log_softmax(-1)
    page.write_text(json.dumps([ids, rows.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()]), "utf-8")
    return {"tokens": len(ids)}


def logprobs(file: Path, engine: str, page: Path) -> dict[str, Any]:
    """The engine in float32 beside them; of a pair both engines, of which llama.cpp computes with the file's own 4 bits."""
    from sapo_backends.registry import get_backend

    ids, expected = json.loads(page.read_text("utf-8"))
    result = {}
    for name in engine.split("+"):
        kind = "auto" if name == "llamacpp" else "float32"
        request = LoadRequest(str(file), "lora", kind, "cpu", threads=1)
        loaded = get_backend(name)().load(request)
        row = loaded.logprobs([TokenSequence((ids[0],), tuple(ids[1:]))])[0]
        gaps = [abs(a - b) for a, b in zip(row, expected, strict=True)]
        result[name] = {"largest": max(gaps), "mean": sum(gaps) / len(gaps)}
        loaded.close()
    return result


def work(file: Path, name: str, _page: Path) -> dict[str, Any]:
    """Load, a round, a step of examples and the export, as a node does them; beside each what the app foretold."""
    from sapo_backends.measure.probe import peak_memory
    from sapo_desktop.paths import Home
    from sapo_desktop.services.bases import question_tokens
    from sapo_desktop.services.machine import engines
    from sapo_swarm.tasks.own import library

    home = Home.find()
    library.set_task_folder(home.tasks)
    groups, group_size, most, examples = ROUND[name]
    config = run_config(file, name, (TASK,))
    run = home.data / "run"
    run.mkdir(parents=True, exist_ok=True)
    watch = Watch()
    engine = engines.run_builder(config, run, home)(lambda *_: None)
    result: dict[str, Any] = {
        "precision": engine.info.precision,
        "load": watch.lap(),
        "loaded_gib": _gib(peak_memory()),
    }
    prompts, samples = _asked(config, engine, examples)
    asked, rows = prompts[:groups], [TokenSequence(s.prompt, s.completion) for s in samples]
    before = engine.logprobs(rows)
    lengths: list[int] = []
    for which in ("first", "warm"):
        watch.lap()
        made = engine.generate(asked, group_size, Sampling(1.0, 1.0, most), seed=1)
        times = {"generate": watch.lap()}
        lengths = [len(c.tokens) for row in made for c in row]
        engine.update(_batch(asked, made), PolicyUpdate(1e-6), seed=1)
        times["update"] = watch.lap()
        result["peak_gib"] = _gib(peak_memory())
        engine.update(samples, PolicyUpdate(RATE), seed=2)
        result[which] = times | {"step": watch.lap()}
    result["tokens"] = {"generated": sum(lengths), "longest": max(lengths), "examples": len(samples)}
    result["tok_s"] = sum(lengths) / result["warm"]["generate"]["cpu_s"]
    if counts := question_tokens.count_question_tokens(home, config, make=True):
        result["counts"] = msgspec.to_builtins(counts)
        _foretell(home, file, name, result)
    result["export"] = _export(file, engine, prompts[-ANSWERS:], samples, before)
    return result


def run_config(file: Path, engine: str, tasks: tuple[str, ...]) -> Any:
    """The run of a cell."""
    from sapo_swarm.config import RunConfig

    groups, group_size, most, _ = ROUND[engine]
    return RunConfig(
        model=str(file),
        trainer=engine,
        device="cpu",
        threads=1,
        tasks=tasks,
        local_groups=groups,
        group_size=group_size,
        max_new_tokens=most,
    )


def foretell(line: dict[str, Any]) -> None:
    """Put the forecasts of today's rules, on this machine's limits, in the place of those that were made when it was measured."""
    from sapo_desktop.paths import Home

    if "counts" in line["work"]:
        _foretell(Home.find(), path_of(line["model"]), line["engine"], line["work"])


def _foretell(home: Any, file: Path, engine: str, work: dict[str, Any]) -> None:
    from sapo_backends.measure.choice import RoundWorkload
    from sapo_desktop.services.bases import card, forecast
    from sapo_desktop.services.bases.question_tokens import TokenCounts
    from sapo_desktop.services.machine import memory_plan

    counts, written = msgspec.convert(work["counts"], TokenCounts), work["tokens"]["generated"]
    groups, group_size, _, examples = ROUND[engine]
    config = run_config(file, engine, ())
    precise = msgspec.structs.replace(config, precision=work["precision"] if "+" not in engine else "auto")
    plan = memory_plan.plan_round_memory(precise, prompt=counts.prompt)
    work["plan_gib"] = _gib(plan.needed) if plan else None
    rates, _ = card.find_engine_rates(home, config, card.build_base_card(home, config, ask=False), measure=True)
    if rates is not None:
        rows, longest = groups * group_size, work["tokens"]["longest"]
        shape = RoundWorkload(rows, written / rows, True, group_size, counts.prompt, counts.shared, longest)
        work["foretold"] = {
            "generate": rates.generate(shape),
            "update": rates.update(groups * counts.prompt, written),
            "step": forecast.step_seconds(rates, counts, examples),
        }


class Watch:
    """Seconds since the last look, by the clock and of the processor."""

    def __init__(self) -> None:
        self._clock, self._processor = time.perf_counter(), time.process_time()

    def lap(self) -> dict[str, float]:
        """Both, and begin anew."""
        clock, processor_s = time.perf_counter(), time.process_time()
        spent = {"seconds": clock - self._clock, "cpu_s": processor_s - self._processor}
        self._clock, self._processor = clock, processor_s
        return {key: round(value, 3) for key, value in spent.items()}


def _gib(size: int) -> float:
    return round(size / 2**30, 3)


def _asked(config: Any, engine: Engine, examples: int) -> tuple[list[list[int]], list[TrainSample]]:
    """Prompts of the table's rows, and a step of the examples phase."""
    from sapo_desktop.services.bases.question_tokens import rows_of
    from sapo_swarm.scoring.prompts import build_conversation
    from sapo_swarm.tasks.own import library

    rows = rows_of(config, library.load_task(TASK), 32)
    prompts = [engine.tokenizer.encode_chat(build_conversation(question, config.answer_format)) for question, _ in rows]
    answers = [(*engine.tokenizer.encode_text(text), engine.tokenizer.eot_id) for _, text in rows]
    pairs = zip(prompts[:examples], answers, strict=False)
    return prompts, [TrainSample(tuple(prompt), answer, 1.0) for prompt, answer in pairs]


def _batch(prompts: Sequence[Sequence[int]], made: Sequence[Sequence[Completion]]) -> list[TrainSample]:
    """Every answer with an advantage, as in a round whose questions all teach something."""
    pairs = [(prompt, c) for prompt, row in zip(prompts, made, strict=True) for c in row]
    return [
        TrainSample(tuple(prompt), c.tokens, 1.0 if place % 2 else -1.0, behaviour_logprobs=c.logprobs)
        for place, (prompt, c) in enumerate(pairs)
    ]


def _export(
    file: Path,
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    samples: Sequence[TrainSample],
    before: Sequence[Sequence[float]],
) -> dict[str, Any]:
    """The adapter as a GGUF file in llama.cpp on the person's own file: nats that the examples' answers gained, of a token on
    average, beside the engine's own; and greedy answers that are the same to the end, of a model that has hardly begun."""
    from sapo_backends.composite import CompositeEngine
    from sapo_backends.registry import get_backend

    rows = [TokenSequence(s.prompt, s.completion) for s in samples]
    sampling = Sampling(0.0, 1.0, ANSWER)
    trainer = engine._trainer if isinstance(engine, CompositeEngine) else engine
    own = [row[0].tokens for row in trainer.generate(prompts, 1, sampling, seed=0)]
    gained = _mean(samples, engine.logprobs(rows)) - _mean(samples, before)
    request = LoadRequest(str(file), "lora", "auto", "cpu", threads=1)
    other = get_backend("llamacpp")().load(replace(request, lora_rank=16, lora_alpha=32.0))
    untrained = _mean(samples, other.logprobs(rows))
    other.set_adapter(engine.adapter(), 32.0)
    theirs = [row[0].tokens for row in other.generate(prompts, 1, sampling, seed=0)]
    return {
        "gained": gained,
        "gained_by_llamacpp": _mean(samples, other.logprobs(rows)) - untrained,
        "identical": sum(a == b for a, b in zip(own, theirs, strict=True)),
        "answers": len(prompts),
    }


def _mean(samples: Sequence[TrainSample], rows: Sequence[Sequence[float]]) -> float:
    """Log-probability of a token of the right answers."""
    values = [value for sample, row in zip(samples, rows, strict=True) for value in sample.masked(row)]
    return sum(values) / len(values)


PARTS = {"tokens": tokens, "reference": reference, "logprobs": logprobs, "work": work}


def markdown(lines: Sequence[dict[str, Any]]) -> str:
    """A row for each cell; foretold beside measured, and their quotient."""
    head = ("model", "engine", "computes in", "load, s", "tokens", "log-probability gap", "tok/s", "generate, s")
    head += ("update, s", "step of examples, s", "memory, GiB", "export")
    text = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for line in lines:
        done, gaps = line["work"], line["logprobs"]
        if "failed" in done:
            text.append(f"| {line['model']} | {line['engine']} | {done['failed']} |" + " |" * (len(head) - 3))
            continue
        cells = [line["model"], line["engine"], done["precision"], f"{done['load']['cpu_s']:.1f}"]
        cells.append(f"{line['tokens']['equal']} of {line['tokens']['texts']}" if "equal" in line["tokens"] else "-")
        cells.append(", ".join(f"{name} {gap['largest']:.1e}" for name, gap in gaps.items() if isinstance(gap, dict)))
        cells.append(f"{done['tok_s']:.1f}")
        foretold = done.get("foretold", {})
        cells += [_beside(foretold.get(part), done["warm"][part]["cpu_s"]) for part in ("generate", "update", "step")]
        cells.append(_beside(done["plan_gib"], done["peak_gib"]))
        export = done["export"]
        cells.append(f"{export['gained_by_llamacpp']:.2f} / {export['gained']:.2f} nats")
        text.append("| " + " | ".join(cells) + " |")
    return "\n".join(text)


def _beside(foretold: float | None, measured: float) -> str:
    if foretold is None:
        return f"{measured:.2f}"
    return f"{foretold:.2f} / {measured:.2f} = {foretold / measured:.2f}"


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
