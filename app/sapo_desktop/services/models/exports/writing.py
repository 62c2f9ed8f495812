"""In a child process: load a checkpoint, answer the questions of the check, write the format."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from sapo_backends.base import Engine, Sampling, TokenSequence
from sapo_backends.checkpoints import locate
from sapo_backends.checkpoints.chat_template import switches_reasoning
from sapo_backends.checkpoints.gguf_adapter_merge import merge_into_codes, why_not_merged
from sapo_backends.checkpoints.gguf_header import read_header
from sapo_backends.checkpoints.gguf_view import gguf_of
from sapo_backends.checkpoints.gguf_write import (
    Kind,
    context_length,
    read_spec,
    require_writable,
    write_adapter,
    write_gguf,
)
from sapo_backends.checkpoints.spec import decoder_spec
from sapo_backends.checkpoints.tokenizer import read_json
from sapo_backends.checkpoints.write_folder import write_adapter_folder
from sapo_backends.common import hardware
from sapo_backends.errors import BackendUnavailable, OutOfMemory
from sapo_backends.llamacpp_backend import LlamaCppBackend
from sapo_desktop.errors import UsageError
from sapo_desktop.services.bases.fetching import licence_files
from sapo_desktop.services.machine import engines
from sapo_desktop.services.machine.load_request import build_load_request
from sapo_desktop.services.models.exports.formats import ADAPTER
from sapo_desktop.services.models.exports.job import AskedQuestion, ReferenceAnswer, WriteJob, WriteResult
from sapo_desktop.services.models.exports.modelfile import LARGEST_CONTEXT, render_modelfile
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import held_out_items
from sapo_swarm.node.checkpoints import read_state
from sapo_swarm.scoring.prompts import build_conversation, build_messages, system_prompt
from sapo_swarm.scoring.scorer import Scorer, ScorerUnavailable
from sapo_swarm.tasks.catalogue import CATALOGUE, UnknownTask, generator_of, preset_of, train_seed
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.spec import BadTask
from sapo_swarm.types import Question, TaskRef

Report = Callable[[float, str], None]
FITTED_ON = 96
"""Training questions on whose texts an adapter is merged into a quantised file."""
TASKS_SHOWN = 4
"""Most tasks whose questions a card shows."""
MERGED = "merged"
"""Folder of the merged weights while they are converted to a GGUF file."""


def write_export(job: WriteJob, report: Report) -> WriteResult:
    """Fill job.folder. Raises BackendError, AppError, OSError."""
    base = locate.resolve_model(job.config.model, lambda fraction, phrase: report(0.1 * fraction, phrase))
    own = gguf_of(base)
    if job.format == "gguf":
        require_writable(base)
        if job.quant == "same":
            require_quantised_base(own, merges=job.config.method != "full")
    missing = tuple(name for name in job.config.tasks if name not in CATALOGUE and not library.is_loadable_task(name))
    present = msgspec.structs.replace(job.config, tasks=tuple(name for name in job.config.tasks if name not in missing))
    chats = asyncio.run(held_out_chats(present, job.questions))
    asked = asyncio.run(how_tasks_ask(present))
    engine = _load(job, lambda fraction, phrase: report(0.1 + 0.3 * fraction, phrase))
    report(0.4, "answering held-out questions")
    answers = _answers(engine, chats, job.tokens)
    report(0.6, "writing weights")
    folder, system = Path(job.folder), _system(engine, job.config)
    switch = switches_reasoning(base, read_json(base / "tokenizer_config.json"))
    exact = _is_exact(engine, job.format)
    result = WriteResult(engine.info.method, str(base), exact, answers, missing, system, switch, asked=asked)
    if job.format == "adapter" and own is not None:
        _write_gguf_adapter(job, engine, own, base, ModelfileTexts(system, asked))
        result = msgspec.structs.replace(result, exact=False, gguf=str(own))
    elif job.format == "adapter":
        name = str(base) if job.config.model in locate.BUNDLED else job.config.model
        write_adapter_folder(engine.adapter(), build_load_request(job.config).lora_alpha, name, base, folder)
    elif job.format == "gguf":
        texts = ModelfileTexts(system, asked)
        _write_gguf(
            job, engine, present, base, texts, own, lambda fraction, phrase: report(0.7 + 0.3 * fraction, phrase)
        )
    else:
        engine.export(folder)
    engine.close()
    for file in licence_files(base):
        shutil.copyfile(file, folder / file.name)
    return result


class ModelfileTexts(NamedTuple):
    """What a Modelfile tells about how the model was asked."""

    system: str
    asked: tuple[AskedQuestion, ...]


def _load(job: WriteJob, report: Report) -> Engine:
    """The checkpoint in float32, so that nothing is rounded; in the run's own type where that does not fit. What was trained
    on a 4-bit base belongs to those rounded weights."""
    trainer = job.config.trainer.rpartition("+")[2]  # the half of a pair that holds the weights
    four = hardware.is_four_bit(job.config.precision)
    config = msgspec.structs.replace(
        job.config, trainer=trainer, precision=f"{hardware.FOUR_BIT}-float32" if four else "float32"
    )
    try:
        engine = engines.engine_builder(config)(report)
    except OutOfMemory:
        engine = engines.engine_builder(msgspec.structs.replace(config, precision=job.config.precision))(report)
    if job.checkpoint:
        read_state(Path(job.checkpoint))
        engine.restore(Path(job.checkpoint) / "engine")
    return engine


def _is_exact(engine: Engine, format: str) -> bool:
    """Whether the answers must be identical: an adapter of a 4-bit base is read on the unrounded base, so other answers do
    not mean another adapter."""
    four = hardware.is_four_bit(engine.info.precision)
    return engine.info.precision.endswith("float32") and not (four and format == "adapter")


async def held_out_chats(config: RunConfig, count: int) -> list[list[dict[str, str]]]:
    """Conversations of the first held-out questions of every task in the config, the tasks in turn."""
    if not count or not config.tasks:
        return []
    per_task = -(-count // len(config.tasks)) + 1  # one to spare: a few coordinates give no question
    refs = sorted(held_out_items(config.tasks, config.preset, per_task), key=lambda ref: ref.index)
    return (await _chats(config, refs))[:count]


async def training_chats(config: RunConfig, count: int) -> list[list[dict[str, str]]]:
    """Conversations of at most `count` training questions, of the config's tasks in turn."""
    chosen = [config.tasks[slot % len(config.tasks)] for slot in range(count if config.tasks else 0)]
    refs = [
        TaskRef(
            task,
            preset_of(task, config.preset),
            train_seed("export", "", 0, slot, config.seed),
            0,
            generator_of(task, ""),
        )
        for slot, task in enumerate(chosen)
    ]
    return await _chats(config, refs)


async def how_tasks_ask(config: RunConfig) -> tuple[AskedQuestion, ...]:
    """How every task asks, with a training question of each: as many as a card has room for."""
    asked = []
    for name in config.tasks[:TASKS_SHOWN]:
        try:
            chats = await training_chats(msgspec.structs.replace(config, tasks=(name,)), 1)
            wording = "" if name in CATALOGUE else library.load_task(name).spec.prompt
        except (ScorerUnavailable, UnknownTask, BadTask):  # no reason to refuse an export
            continue
        asked += [AskedQuestion(name, wording, str(chat[-1]["content"])) for chat in chats]
    return tuple(asked)


async def _chats(config: RunConfig, refs: list[TaskRef]) -> list[list[dict[str, str]]]:
    async with Scorer() as scorer:
        candidates = await scorer.questions(refs)
    questions = [question for question in candidates if isinstance(question, Question)]
    return [build_conversation(question, config.answer_format) for question in questions]


def _system(engine: Engine, config: RunConfig) -> str:
    """The system prompt that the model was trained with; "" where its chat template leaves it out, as the starter's does."""
    system = system_prompt(config.tasks, config.answer_format)
    with_prompt, with_other = (
        engine.tokenizer.encode_chat(build_messages("?", text)) for text in (system, f"{system}.")
    )
    return system if with_prompt != with_other else ""


def _answers(engine: Engine, chats: list[list[dict[str, str]]], tokens: int) -> list[ReferenceAnswer]:
    """Greedy answers to the conversations that fit into the model's context and that other programs tokenize identically."""
    alike = [chat for chat in chats if not any(engine.tokenizer.spells_control(message["content"]) for message in chat)]
    prompts = [(chat, engine.tokenizer.encode_chat(chat)) for chat in alike]
    prompts = [(chat, ids) for chat, ids in prompts if len(ids) + tokens <= engine.info.context_length]
    groups = engine.generate([ids for _, ids in prompts], 1, Sampling(0.0, 1.0, tokens), seed=0) if prompts else []
    pairs = zip(prompts, groups, strict=True)
    return [ReferenceAnswer(chat, list(ids), list(group[0].tokens)) for (chat, ids), group in pairs]


def _write_gguf_adapter(job: WriteJob, engine: Engine, own: Path, base: Path, texts: ModelfileTexts) -> None:
    """Write the adapter for the person's own GGUF file, and a Modelfile that applies it."""
    spec, folder = decoder_spec(read_json(base / "config.json")), Path(job.folder)
    write_adapter(spec, engine.adapter(), build_load_request(job.config).lora_alpha, folder / ADAPTER)
    context = min(context_length(spec), LARGEST_CONTEXT)
    thinking = job.config.thinking
    text = render_modelfile(base, str(own), context, texts.system, thinking, adapter=ADAPTER, asked=texts.asked)
    (folder / "Modelfile").write_text(text, encoding="utf-8")


def require_quantised_base(own: Path | None, merges: bool) -> None:
    """Raise UsageError where the model was not made from a GGUF file, or has to be rounded to that file's types and there is
    no llama.cpp to do it. merges: an adapter goes into the file's own codes, which needs nothing else."""
    if own is None:
        raise UsageError("--quant same is for a model that was made from a GGUF file. Use --quant q8_0.")
    if not merges:
        require_quantiser("All of its weights were trained")


def require_quantiser(why: str) -> None:
    """Raise UsageError with what needs no llama.cpp, where there is none. why: the adapter is not merged into the codes."""
    try:
        LlamaCppBackend.check()
    except BackendUnavailable as error:
        raise UsageError(
            f"{why}, so --quant same rounds them to your file's types, which llama.cpp does. It is not here: "
            f"{error.fix_command}. Without it: --quant q8_0."
        ) from error


def quantise_like(whole: Path, target: Path, base: Path | None) -> None:
    """Quantise a 16-bit file to the types of the base's file, with llama.cpp's own quantiser. Raises BackendError."""
    assert base is not None
    from sapo_backends.llamacpp_backend.native import quantise_gguf

    quantise_gguf(whole, target, read_header(base).number("general.file_type"))


def _merge_into_own(job: WriteJob, engine: Engine, config: RunConfig, base: Path, own: Path, report: Report) -> bool:
    """Write a copy of the base's file with the adapter in its codes, fitted on training questions and the model's answers.
    False, and nothing is written, where that cannot be done: it has to be rounded."""
    spec, adapter = decoder_spec(read_json(base / "config.json")), engine.adapter()
    if why_not_merged(own, spec, adapter):
        return False
    report(0.0, "answering training questions")
    prompts = [engine.tokenizer.encode_chat(chat) for chat in asyncio.run(training_chats(config, FITTED_ON))]
    prompts = [ids for ids in prompts if len(ids) + job.tokens <= engine.info.context_length]
    if not prompts:
        return False
    try:
        engine.linear_inputs([TokenSequence(tuple(prompts[0]), (0,))])  # before all are answered for nothing
    except BackendUnavailable:
        return False
    groups = engine.generate(prompts, 1, Sampling(0.0, 1.0, job.tokens), seed=0)
    answered = [TokenSequence(tuple(ids), tuple(group[0].tokens)) for ids, group in zip(prompts, groups, strict=True)]
    inputs = engine.linear_inputs(answered)
    engine.close()
    settings = build_load_request(job.config)
    merge_into_codes(
        own,
        Path(job.folder) / job.file,
        spec,
        adapter,
        settings.lora_alpha / settings.lora_rank,
        lambda module: np.asarray(inputs[module], np.float32),
        lambda fraction, phrase: report(0.3 + 0.7 * fraction, phrase),
    )
    return True


def _write_gguf(
    job: WriteJob,
    engine: Engine,
    config: RunConfig,
    base: Path,
    texts: ModelfileTexts,
    own: Path | None,
    report: Report,
) -> None:
    folder = Path(job.folder)
    if job.quant == "same" and own is not None and _merge_into_own(job, engine, config, base, own, report):
        context = min(context_length(read_spec(base)), LARGEST_CONTEXT)
        text = render_modelfile(base, job.file, context, texts.system, job.config.thinking, asked=texts.asked)
        (folder / "Modelfile").write_text(text, encoding="utf-8")
        return
    merged = folder / MERGED
    merged.mkdir()
    engine.export(merged)
    engine.close()
    kinds: dict[str, Kind] = {"f16": "F16", "q8_0": "Q8_0", "q4_0": "Q4_0"}
    if job.quant == "same":
        require_quantiser("What was trained cannot be merged into the codes of your file")
        merged_file = folder / f"{MERGED}.gguf"
        write_gguf(merged, merged_file, "F16", progress=report)
        quantise_like(merged_file, folder / job.file, own)
        merged_file.unlink()
    else:
        write_gguf(merged, folder / job.file, kinds[job.quant], progress=report)
    context = min(context_length(read_spec(merged)), LARGEST_CONTEXT)
    text = render_modelfile(merged, job.file, context, texts.system, job.config.thinking, asked=texts.asked)
    (folder / "Modelfile").write_text(text, encoding="utf-8")
    shutil.rmtree(merged)
