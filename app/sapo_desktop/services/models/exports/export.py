"""One export from start to finish: where it goes and whether it fits, the child that writes it, the check, the report."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from sapo_backends.base import Progress
from sapo_backends.child_process import ChildProcess, child_environment, describe_end, last_line, python_command
from sapo_backends.common import hardware
from sapo_backends.errors import size_text
from sapo_backends.packages import install_command
from sapo_desktop.errors import AppError, EngineMissing, UsageError
from sapo_desktop.services.machine.load_request import build_load_request, local_folder
from sapo_desktop.services.models.exports.card import ModelCardRecord, render_model_card
from sapo_desktop.services.models.exports.formats import (
    ADAPTER,
    FORMATS,
    PACKAGES,
    ExportFailed,
    ExportPlan,
    ExportSource,
    Format,
)
from sapo_desktop.services.models.exports.job import (
    Job,
    JobFailure,
    JobProgress,
    LibraryMissing,
    ReadJob,
    ReadResult,
    Reply,
    WriteJob,
    WriteResult,
)
from sapo_swarm.node.checkpoints import free_bytes
from sapo_swarm.tasks.own import library

# Where an export goes and whether it fits: checked before anything is written.

BYTES_A_WEIGHT = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32, "same": 2.0}
"""For "same", the size of the 16-bit weights that it is rounded from after full fine-tuning; else the file is smaller."""
FLOAT32 = 4
BESIDE = 32 * 2**20
"""Bytes for tokenizer, settings, card, file system."""
SPARE = 1.05


@dataclass(frozen=True, slots=True)
class ExportEstimate:
    """Bytes: size of the finished export, peak use of the disk while it is written, and what is free there now."""

    size: int
    peak: int
    free: int

    @property
    def fits(self) -> bool:
        """Whether there is room for all of it, the peak included."""
        return self.peak <= self.free


def estimate_export(source: ExportSource, plan: ExportPlan) -> ExportEstimate:
    """Read from the headers of the base model's files; nothing is loaded. Raises ModelNotFound."""
    from sapo_backends.measure.precision import model_size

    size, _ = model_size(local_folder(source.config), build_load_request(source.config))
    merged = FLOAT32 * size.parameters
    if plan.format == "adapter":
        final = FLOAT32 * size.trainable
        peak = final
    elif plan.format == "gguf":
        eight_bits = size.vocabulary * size.hidden * (BYTES_A_WEIGHT["q8_0"] - BYTES_A_WEIGHT["q4_0"])
        final = int(BYTES_A_WEIGHT[plan.quant] * size.parameters + (eight_bits if plan.quant == "q4_0" else 0))
        peak = final + merged
    else:
        final = peak = merged
    return ExportEstimate(int(final * SPARE), int(peak * SPARE) + BESIDE, free_bytes(plan.target))


def default_target(model_folder: Path, source: ExportSource, plan_label: str) -> Path:
    """exports/<training>-<format> in the model's own folder, such as examples-000030-rounds-000063-hf: a checkpoint's own name
    counts steps of examples and rounds of practice together."""
    name, done = source.checkpoint.name if source.checkpoint is not None else "base", source.record.trained
    if source.checkpoint is not None and done.steps:
        name = f"examples-{done.steps:06d}" + (f"-rounds-{done.rounds:06d}" if done.rounds else "")
    return model_folder / "exports" / f"{name}-{plan_label}"


def formats_for(source: ExportSource) -> tuple[Format, ...]:
    """The formats that this model can be exported to: an adapter only where one was trained. Raises ModelNotFound."""
    from sapo_backends.measure.precision import model_size

    _, method = model_size(local_folder(source.config), build_load_request(source.config))
    return tuple(name for name in FORMATS if name != "adapter" or method == "lora")


def check_export(source: ExportSource, plan: ExportPlan) -> None:
    """Check that the model can have that format, the target is new or an empty folder, and the disk has room.

    Raises UsageError, ExportFailed, ModelNotFound.
    """
    if plan.format not in formats_for(source):
        raise UsageError(
            f"{source.record.name} has no LoRA adapter: all of its weights were trained. Use --format hf, gguf or mlx."
        )
    require_empty(plan.target)
    found = estimate_export(source, plan)
    if not found.fits:
        raise ExportFailed(
            f"This needs {size_text(found.peak)} on the disk of {plan.target}, and {size_text(found.free)} are "
            "free. Free some, name a folder on another disk with --to, or choose fewer bits (gguf, q4_0)."
        )


def require_empty(target: Path) -> None:
    """Nothing is there, or a folder that holds nothing but half exports. Raises UsageError."""
    try:
        if target.exists() and not target.is_dir():
            raise UsageError(f"{target} is a file, and an export is a folder. Name another one: --to FOLDER")
        if target.is_dir() and any(_half_export(target.name, path) is None for path in target.iterdir()):
            raise UsageError(f"{target} is there already and not empty. Name another folder: --to FOLDER")
    except OSError as error:
        raise UsageError(f"Cannot read {target} ({error.strerror}). Name another folder: --to FOLDER") from error


@contextlib.contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """A folder that becomes `target` when the block ends well; otherwise nothing is left. Raises AppError.

    It lies beside the target, or in it where that is an empty folder: that may be another disk, or where a shell stands, and
    neither can be removed and made anew.
    """
    there = target.is_dir()
    folder = target if there else target.parent
    partial = folder / f".{target.name}.{os.getpid()}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder, target.name)
        if there:
            with contextlib.suppress(OSError):  # of when it was not there yet; the parent may be somebody else's
                _remove_leftovers(target.parent, target.name)
        partial.mkdir()
    except FileExistsError as error:
        raise UsageError(f"{target} is being written already.") from error
    except OSError as error:
        raise _cannot_write(folder, error) from error
    try:
        yield partial
        require_empty(target)  # something may have come there meanwhile
        try:
            if there:
                for path in list(partial.iterdir()):
                    path.rename(target / path.name)
            else:
                partial.rename(target)
        except OSError as error:
            raise _cannot_write(folder, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _cannot_write(folder: Path, error: OSError) -> AppError:
    return AppError(f"Cannot write in {folder} ({error.strerror}). Name another folder: --to FOLDER")


def _half_export(name: str, path: Path) -> int | None:
    """The process that writes, or wrote, this half export of that name; None where it is none."""
    match = re.match(rf"^\.{re.escape(name)}\.(\d+)\.partial$", path.name)
    return int(match[1]) if match else None


def _remove_leftovers(folder: Path, name: str) -> None:
    """Half exports to the same place by processes that were killed."""
    import psutil

    for path in folder.iterdir():
        writer = _half_export(name, path)
        if writer is not None and writer != os.getpid() and not psutil.pid_exists(writer):
            shutil.rmtree(path, ignore_errors=True)


# The child that writes the export, or reads it again with the library it is for.

QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}


class Crashed(ExportFailed):
    """The child process ended without an answer."""


def run_export_job(job: Job, progress: Progress) -> WriteResult | ReadResult | LibraryMissing | JobFailure:
    """The child's last reply; an interrupt or an error in progress ends the child. Raises Crashed."""
    command = python_command("sapo_desktop.services.models.exports.worker")
    with ChildProcess(command, child_environment(QUIET), msgspec.json.encode(job)) as child:
        for reply in decode_replies(child.lines()):
            if not isinstance(reply, JobProgress):
                return reply
            progress(reply.fraction, reply.phrase)
        last = last_line(child.read_errors())[:200]
        raise Crashed(f"The process that did it ended with {describe_end(child.code)}{f': {last}' if last else '.'}")


def decode_replies(lines: Iterable[bytes]) -> Iterator[Reply]:
    """Every reply of the child. Output of a library between replies, and lines cut off by a kill, are skipped."""
    decoder: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):
            yield decoder.decode(line)


def error_of_failed_job(failed: JobFailure, doing: str) -> AppError:
    """The error of a child that reported why it failed."""
    kinds: dict[int, type[AppError]] = {2: UsageError, 4: EngineMissing}
    return kinds.get(failed.code, ExportFailed)(f"{doing}{failed.message}")


# The result of an export: where it is and how far the library it is for agrees with the engine that trained it.

LIBRARIES = {"transformers": "transformers", "peft": "peft", "llama_cpp": "llama.cpp", "mlx_lm": "mlx_lm"}
"""import name -> the name that people use."""
TIES = 10
"""One answer in this many may differ in a lossless format: near-ties of two tokens may fall either way."""
KEPT = 0.9
"""Below this share of identical answers, a file in few bits is not a copy of what was trained."""
UNDONE = (
    "Rounding to so few bits undid part of what was learned. Use --quant q8_0, or of a model made from a GGUF file "
    "--format adapter, which leaves that file as it is."
)
FOLLOWED = 0.6
"""With fewer answers than that, one may still differ if the mean followed part is at least this."""


class AnswerAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """Greedy answers to held-out questions, by the engine that trained the model and by another library.

    prompts: questions that the other library tokenized identically. identical: answers with the same tokens to the end.
    followed: mean part of an answer before the first differing token, in [0, 1]. tokens: longest answer compared.
    """

    library: str
    version: str
    answers: int
    prompts: int
    identical: int
    followed: float
    tokens: int

    def sentence(self) -> str:
        """For people."""
        name = LIBRARIES.get(self.library, self.library)
        share = f"{self.identical} of {self.answers} greedy answers identical to the trained model's"
        text = f"Loaded again by {name} {self.version}: {share}"
        if self.identical < self.answers:
            text += f", {100 * self.followed:.0f} % of each followed before the first other token"
        if self.prompts < self.answers:
            text += f"; {self.answers - self.prompts} of {self.answers} questions split into other tokens"
        return f"{text} (at most {self.tokens} tokens each)."

    def wrong(self, lossless: bool) -> bool:
        """Not rounding but a different model: other prompts, or other answers in a lossless format."""
        ties = max(self.answers // TIES, self.followed >= FOLLOWED)
        return self.prompts < self.answers or (lossless and self.answers - self.identical > ties)


class ExportResult(msgspec.Struct, frozen=True, kw_only=True):
    """folder: where it is. size: bytes on disk. agreement: None where it was not checked; unchecked: why. few_bits: the
    weights were rounded to 4 bits, or to the types of the base's file."""

    folder: Path
    size: int
    agreement: AnswerAgreement | None = None
    unchecked: str = ""
    few_bits: bool = False

    def sentence(self) -> str:
        """How it was checked, for people; and what to do where rounding to few bits undid the training."""
        if self.agreement is None:
            return self.unchecked
        lost = self.few_bits and self.agreement.identical < KEPT * self.agreement.answers
        return f"{self.agreement.sentence()} {UNDONE}" if lost else self.agreement.sentence()


def compare_greedy_answers(
    library: str,
    version: str,
    ours: Sequence[tuple[Sequence[int], Sequence[int]]],
    theirs: Sequence[tuple[Sequence[int], Sequence[int]]],
    tokens: int,
) -> AnswerAgreement:
    """Agreement of (prompt ids, answer ids) pairs, in the same order. Two empty answers agree."""
    pairs = [(tuple(a[1]), tuple(b[1])) for a, b in zip(ours, theirs, strict=True)]
    prompts = sum(tuple(a[0]) == tuple(b[0]) for a, b in zip(ours, theirs, strict=True))
    followed = [_followed(a, b) for a, b in pairs]
    return AnswerAgreement(
        library=library,
        version=version,
        answers=len(pairs),
        prompts=prompts,
        identical=sum(a == b for a, b in pairs),
        followed=sum(followed) / len(followed) if followed else 1.0,
        tokens=tokens,
    )


def _followed(ours: tuple[int, ...], theirs: tuple[int, ...]) -> float:
    longest = max(len(ours), len(theirs))
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return same / longest if longest else 1.0


# One export from start to finish: check, write, read again, report, rename.

QUESTIONS = 20
TOKENS = 64
"""Longest answer that is compared, in tokens."""
UNCHECKED = "It is complete, but was not loaded again to check it:"
UNVERIFIED = "It was not loaded again by another library (--no-verify)."
WRITING = 0.7
"""Fraction of the whole that is done when the files are written, if they are read again afterwards."""


def create_export(source: ExportSource, plan: ExportPlan, progress: Progress | None = None) -> ExportResult:
    """Write the model into plan.target, which appears only when it is complete and was read again.

    Neither an interrupt nor an error leaves anything behind. Raises UsageError, ExportFailed, EngineMissing, ModelNotFound.
    """
    check_export(source, plan)
    with unfinished(plan.target) as folder:
        making = _Making(source, plan, folder, progress)
        result = making.write()
        agreement, unchecked = making.read_again(result) if plan.verify else (None, UNVERIFIED)
        config = source.config
        record = replace(
            source.record,
            method=result.method,
            system=result.system,
            asked=result.asked,
            thinking=config.thinking == "on" if result.switch else None,
            four_bit=hardware.is_four_bit(config.precision),
        )
        checked = agreement.sentence() if agreement is not None else unchecked
        (folder / "README.md").write_text(
            render_model_card(record, plan.format, loading_instructions(record, plan, result.gguf), checked),
            encoding="utf-8",
        )
        size = _settle(folder)
    return ExportResult(
        folder=plan.target, size=size, agreement=agreement, unchecked=unchecked, few_bits=plan.quant in ("same", "q4_0")
    )


def _settle(folder: Path) -> int:
    """Bytes of all files; makes each readable for everybody who may read the card: some libraries write for the owner alone."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    for file in files:
        file.chmod((folder / "README.md").stat().st_mode)
    return sum(file.stat().st_size for file in files)


def _library(plan: ExportPlan, written: WriteResult) -> str:
    """The library that reads the export: llama.cpp for an adapter of a GGUF file."""
    return "llama_cpp" if written.gguf else FORMATS[plan.format].library


@dataclass(frozen=True, slots=True)
class _Making:
    """An export being made in `folder`, which is not yet its final place."""

    source: ExportSource
    plan: ExportPlan
    folder: Path
    progress: Progress | None

    @property
    def _file(self) -> str:
        return f"{self.source.record.slug}-{self.plan.quant}.gguf"

    def _run(
        self, job: WriteJob | ReadJob, start: float, end: float
    ) -> WriteResult | ReadResult | LibraryMissing | JobFailure:
        """The child's last reply; its progress is mapped to the range from start to end of the whole."""

        def report(fraction: float, phrase: str) -> None:
            if self.progress is not None:
                self.progress(start + (end - start) * fraction, phrase)

        report(0.0, "starting")
        return run_export_job(job, report)

    def write(self) -> WriteResult:
        """Write the files, without the card. Raises ExportFailed, EngineMissing, UsageError."""
        checkpoint, verify = self.source.checkpoint, self.plan.verify
        job = WriteJob(
            config=self.source.config,
            checkpoint=str(checkpoint.absolute()) if checkpoint is not None else "",
            format=self.plan.format,
            quant=self.plan.quant,
            folder=str(self.folder.absolute()),
            file=self._file,
            questions=QUESTIONS if verify else 0,
            tokens=TOKENS,
            own_tasks=str(own) if (own := library.task_folder()) is not None else "",
        )
        reply = self._run(job, 0.0, WRITING if verify else 1.0)
        if isinstance(reply, JobFailure):
            raise error_of_failed_job(reply, "")
        if not isinstance(reply, WriteResult):
            raise ExportFailed("The process that writes gave no result. Try again.")
        return reply

    def _answers(self, written: WriteResult) -> ReadResult | LibraryMissing:
        """The library's answers. Raises ExportFailed when it cannot load the files."""
        library = _library(self.plan, written)
        path = self.folder / self._file if self.plan.format == "gguf" else Path(written.gguf or self.folder)
        chats = [answer.chat for answer in written.answers]
        job = ReadJob(
            library=library,
            path=str(path.absolute()),
            base=written.base,
            chats=chats,
            tokens=TOKENS,
            thinking=self.source.config.thinking == "on",
            adapter=str((self.folder / ADAPTER).absolute()) if written.gguf else "",
        )
        refused = f"{LIBRARIES[library]} does not load what was written, so nothing was kept. "
        try:
            reply = self._run(job, WRITING, 1.0)
        except Crashed as error:
            raise ExportFailed(f"{refused}{error}") from error
        if isinstance(reply, JobFailure):
            raise error_of_failed_job(reply, refused)
        if isinstance(reply, WriteResult):
            raise ExportFailed("The process that reads gave no result. Try again.")
        return reply

    def read_again(self, written: WriteResult) -> tuple[AnswerAgreement | None, str]:
        """How far the library agrees, else why that is not known. Raises ExportFailed when it reads a different model."""
        info, library = FORMATS[self.plan.format], _library(self.plan, written)
        if not written.answers and written.gone:
            single = len(written.gone) == 1
            names = f"The task{'' if single else 's'} {', '.join(written.gone)} {'is' if single else 'are'}"
            loads = f"{'does' if single else 'do'} not load"
            return None, f"{names} not here any more or {loads}, so the export was not checked."
        if not written.answers:
            fit = "fits into this model's context and spells none of its control tokens"
            return None, f"It was not loaded again: no held-out question is here that {fit}."
        reply = self._answers(written)
        if isinstance(reply, LibraryMissing):
            return (
                None,
                f"{UNCHECKED} {LIBRARIES[library]} is not installed here ({install_command(PACKAGES[library])}).",
            )
        ours = [(answer.prompt, answer.answer) for answer in written.answers][: len(reply.answers)]
        agreement = compare_greedy_answers(library, reply.version, ours, reply.answers, TOKENS)
        if agreement.wrong(info.lossless and written.exact):
            raise ExportFailed(
                f"{agreement.sentence()} That is another model, so nothing was kept. Please report it; --no-verify writes "
                "it all the same."
            )
        return agreement, ""


# How an export is loaded, as markdown for its model card.

_TRANSFORMERS = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = AutoModelForCausalLM.from_pretrained("."), AutoTokenizer.from_pretrained(".")
```
"""
_PEFT = """\
```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained("{base}"){where}
model, tokenizer = PeftModel.from_pretrained(base, "."), AutoTokenizer.from_pretrained(".")
```
"""
_GGUF = """\
```sh
ollama create {slug} -f Modelfile && ollama run {slug}
llama-server -m {slug}-{quant}.gguf --jinja{budget}
```
"""
_GGUF_ADAPTER = """\
```sh
ollama create {slug} -f Modelfile && ollama run {slug}
llama-server -m {base} --lora {adapter} --jinja
```
"""
_FOUR_BIT = """
The adapter belongs to the base in 4 bits (NF4, as QLoRA rounds it), on which it was trained; on the base as it is, its
answers differ a little.
"""
_MLX = """\
```sh
mlx_lm.chat --model .
```
"""


def loading_instructions(record: ModelCardRecord, plan: ExportPlan, gguf: str = "") -> str:
    """The commands or lines of code that load it from within its folder. gguf: the file that an adapter is for, if it is
    one."""
    if gguf:
        return _GGUF_ADAPTER.format(slug=record.slug, base=shlex.quote(gguf), adapter=ADAPTER)
    on_hub = "/" in record.base_name
    base = record.base_name if on_hub else f"path/to/{record.base_name}"
    where = "" if on_hub else "  # adapter_config.json says where it lay"
    budget = " --reasoning-budget 0" if record.thinking is False else ""
    peft = f"{_PEFT}{_FOUR_BIT}" if record.four_bit else _PEFT
    texts = {"hf": _TRANSFORMERS, "adapter": peft, "gguf": _GGUF, "mlx": _MLX}
    return texts[plan.format].format(base=base, where=where, slug=record.slug, quant=plan.quant, budget=budget)
