"""One export from beginning to end: check, write, read again, tell, rename."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sapo_backends.base import CancelToken, Progress
from sapo_desktop.services.models.exports import child, room
from sapo_desktop.services.models.exports.card import card
from sapo_desktop.services.models.exports.formats import FORMATS, ExportFailed, Plan, Source
from sapo_desktop.services.models.exports.job import Answered, Failed, Missing, Read, Write, Written
from sapo_desktop.services.models.exports.report import LIBRARIES, Agreement, Exported, compare
from sapo_desktop.services.models.exports.usage import usage

QUESTIONS = 20
TOKENS = 64
"""Longest answer that is compared."""
WRITING = 0.7
"""Part of the whole that is done when the files are written, if they are checked afterwards."""


def export(source: Source, plan: Plan, progress: Progress | None = None, cancel: CancelToken | None = None) -> Exported:
    """Write the model into plan.target, which appears only when it is complete and was read again.

    May be called from any thread; progress is called from it. cancel takes effect within a fraction of a second, and
    neither it nor an error leaves anything behind.
    Raises UsageError, ExportFailed, EngineMissing, ModelNotFound, Cancelled.
    """
    report, stop = progress or (lambda fraction, phrase: None), cancel or CancelToken()
    room.check(source, plan)
    with room.beside(plan.target) as folder:
        share = WRITING if plan.verify else 1.0
        written = _write(source, plan, folder, lambda f, phrase: report(share * f, phrase), stop)
        agreement, unchecked = None, "It was not loaded again by another library (--no-verify)."
        if plan.verify:
            report(WRITING, "reading it again")
            agreement, unchecked = _read_again(
                source, plan, folder, written, lambda f, phrase: report(WRITING + (1 - WRITING) * f, phrase), stop
            )
        record = replace(source.record, method=written.method)
        checked = agreement.sentence() if agreement is not None else unchecked
        text = card(record, plan.format, usage(record, plan), checked)
        (folder / "README.md").write_text(text, encoding="utf-8")
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        stop.raise_if_cancelled()
    report(1.0, "done")
    return Exported(folder=plan.target, size=size, agreement=agreement, unchecked=unchecked if not agreement else "")


def _file_name(source: Source, plan: Plan) -> str:
    return f"{source.record.slug}-{plan.quant}.gguf"


def _write(source: Source, plan: Plan, folder: Path, report: Progress, stop: CancelToken) -> Written:
    job = Write(
        config=source.config,
        checkpoint=str(source.checkpoint.absolute()) if source.checkpoint is not None else "",
        format=plan.format,
        quant=plan.quant,
        folder=str(folder.absolute()),
        file=_file_name(source, plan),
        title=source.record.name,
        questions=QUESTIONS if plan.verify else 0,
        chats=[list(chat) for chat in source.chats] if plan.verify else [],
        tokens=TOKENS,
    )
    reply = child.run(job, report, stop)
    if isinstance(reply, Failed):
        raise child.refuse(reply, "")
    if not isinstance(reply, Written):
        raise ExportFailed("The process that writes gave no result. Try again.")
    return reply


def _read_again(
    source: Source, plan: Plan, folder: Path, written: Written, report: Progress, stop: CancelToken
) -> tuple[Agreement | None, str]:
    """How far the library agrees, or why that is not known. Raises ExportFailed when it reads another model."""
    info = FORMATS[plan.format]
    name = LIBRARIES[info.library]
    if not written.answers:
        return None, "It was not loaded again: no held-out question fits into this model's context."
    path = folder / _file_name(source, plan) if plan.format == "gguf" else folder
    chats = [answer.chat for answer in written.answers]
    job = Read(library=info.library, path=str(path.absolute()), base=written.base, chats=chats, tokens=TOKENS)
    try:
        reply = child.run(job, report, stop)
    except child.Crashed as error:
        raise ExportFailed(f"{name} does not load what was written, so nothing was kept. {error}") from error
    if isinstance(reply, Missing):
        return None, f"It was not loaded again: {name} is not installed here."
    if isinstance(reply, Failed):
        raise child.refuse(reply, f"{name} does not load what was written, so nothing was kept. ")
    if not isinstance(reply, Answered):
        raise ExportFailed("The process that reads gave no result. Try again.")
    ours = [(answer.prompt, answer.answer) for answer in written.answers][: len(reply.answers)]
    found = compare(info.library, reply.version, ours, reply.answers, TOKENS)
    if found.wrong(info.lossless and written.exact):
        raise ExportFailed(
            f"{found.sentence()} That is another model, so nothing was kept. Please report it; --no-verify writes it "
            "all the same."
        )
    return found, ""
