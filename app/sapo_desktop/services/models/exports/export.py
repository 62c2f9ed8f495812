"""One export from beginning to end: check, write, read again, tell, rename."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from sapo_backends.base import Progress
from sapo_backends.common import precisions
from sapo_desktop.services.models.exports import child, room
from sapo_desktop.services.models.exports.card import card
from sapo_desktop.services.models.exports.formats import ADAPTER, FORMATS, ExportFailed, Plan, Source
from sapo_desktop.services.models.exports.job import Answered, Failed, Missing, Read, Write, Written
from sapo_desktop.services.models.exports.report import LIBRARIES, Agreement, Exported, compare
from sapo_desktop.services.models.exports.usage import usage
from sapo_swarm.tasks.own import library

QUESTIONS = 20
TOKENS = 64
"""Longest answer that is compared."""
UNVERIFIED = "It was not loaded again by another library (--no-verify)."
WRITING = 0.7
"""Part of the whole that is done when the files are written, if they are read again afterwards."""


def export(source: Source, plan: Plan, progress: Progress | None = None) -> Exported:
    """Write the model into plan.target, which appears only when it is complete and was read again.

    Neither an interrupt nor an error leaves anything behind. Raises UsageError, ExportFailed, EngineMissing, ModelNotFound.
    """
    room.check(source, plan)
    with room.beside(plan.target) as folder:
        making = _Making(source, plan, folder, progress)
        written = making.write()
        agreement, unchecked = making.read_again(written) if plan.verify else (None, UNVERIFIED)
        config = source.config
        record = replace(
            source.record,
            method=written.method,
            system=written.system,
            thinking=config.thinking == "on" if written.switch else None,
            four_bit=precisions.is_four_bit(config.precision),
        )
        checked = agreement.sentence() if agreement is not None else unchecked
        (folder / "README.md").write_text(
            card(record, plan.format, usage(record, plan, written.gguf), checked), encoding="utf-8"
        )
        size = _settle(folder)
    return Exported(
        folder=plan.target, size=size, agreement=agreement, unchecked=unchecked, few_bits=plan.quant in ("same", "q4_0")
    )


def _settle(folder: Path) -> int:
    """Bytes of all files, each readable for whom the card is: some libraries write for the owner alone."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    for file in files:
        file.chmod((folder / "README.md").stat().st_mode)
    return sum(file.stat().st_size for file in files)


def _library(plan: Plan, written: Written) -> str:
    """Who reads the export: of an adapter for a GGUF file llama.cpp."""
    return "llama_cpp" if written.gguf else FORMATS[plan.format].library


@dataclass(frozen=True, slots=True)
class _Making:
    """An export on its way in `folder`, which is not yet its place."""

    source: Source
    plan: Plan
    folder: Path
    progress: Progress | None

    @property
    def _file(self) -> str:
        return f"{self.source.record.slug}-{self.plan.quant}.gguf"

    def _run(self, job: Write | Read, start: float, end: float) -> Written | Answered | Missing | Failed:
        """The child's last reply; its progress is the part from start to end of the whole."""

        def report(fraction: float, phrase: str) -> None:
            if self.progress is not None:
                self.progress(start + (end - start) * fraction, phrase)

        report(0.0, "starting")
        return child.run(job, report)

    def write(self) -> Written:
        """The files, without card. Raises ExportFailed, EngineMissing, UsageError."""
        checkpoint, verify = self.source.checkpoint, self.plan.verify
        job = Write(
            config=self.source.config,
            checkpoint=str(checkpoint.absolute()) if checkpoint is not None else "",
            format=self.plan.format,
            quant=self.plan.quant,
            folder=str(self.folder.absolute()),
            file=self._file,
            questions=QUESTIONS if verify else 0,
            tokens=TOKENS,
            own_tasks=str(own) if (own := library.folder()) is not None else "",
        )
        reply = self._run(job, 0.0, WRITING if verify else 1.0)
        if isinstance(reply, Failed):
            raise child.refuse(reply, "")
        if not isinstance(reply, Written):
            raise ExportFailed("The process that writes gave no result. Try again.")
        return reply

    def _answers(self, written: Written) -> Answered | Missing:
        """What the library answers. Raises ExportFailed when it does not load the files."""
        library = _library(self.plan, written)
        path = self.folder / self._file if self.plan.format == "gguf" else Path(written.gguf or self.folder)
        chats = [answer.chat for answer in written.answers]
        job = Read(
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
        except child.Crashed as error:
            raise ExportFailed(f"{refused}{error}") from error
        if isinstance(reply, Failed):
            raise child.refuse(reply, refused)
        if isinstance(reply, Written):
            raise ExportFailed("The process that reads gave no result. Try again.")
        return reply

    def read_again(self, written: Written) -> tuple[Agreement | None, str]:
        """How far the library agrees, else why that is not known. Raises ExportFailed when it reads another model."""
        info, library = FORMATS[self.plan.format], _library(self.plan, written)
        if not written.answers and written.gone:
            one = len(written.gone) == 1
            names = f"The task{'' if one else 's'} {', '.join(written.gone)} {'is' if one else 'are'}"
            loads = f"{'does' if one else 'do'} not load"
            return None, f"{names} not here any more or {loads}, so the export was not checked."
        if not written.answers:
            fit = "fits into this model's context and spells none of its control tokens"
            return None, f"It was not loaded again: no held-out question is here that {fit}."
        reply = self._answers(written)
        if isinstance(reply, Missing):
            return None, f"It was not loaded again: {LIBRARIES[library]} is not installed here."
        ours = [(answer.prompt, answer.answer) for answer in written.answers][: len(reply.answers)]
        found = compare(library, reply.version, ours, reply.answers, TOKENS)
        if found.wrong(info.lossless and written.exact):
            raise ExportFailed(
                f"{found.sentence()} That is another model, so nothing was kept. Please report it; --no-verify writes "
                "it all the same."
            )
        return found, ""
