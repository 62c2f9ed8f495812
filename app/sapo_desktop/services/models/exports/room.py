"""Where an export goes and whether it fits: asked before anything is written."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sapo_backends.errors import size_text
from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.services.machine.load_request import local_folder, request
from sapo_desktop.services.models.exports.formats import FORMATS, ExportFailed, Format, Plan, Source
from sapo_swarm.node.checkpoints import free_bytes

BYTES_A_WEIGHT = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32, "same": 2.0}
"""Of "same" those of the 16 bits that it is made from: the file is smaller."""
FLOAT32 = 4
BESIDE = 32 * 2**20
"""Tokenizer, settings, card, file system."""
SPARE = 1.05


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes: size of the finished export, the most that is on disk while it is made, and what is free there now."""

    size: int
    peak: int
    free: int

    @property
    def fits(self) -> bool:
        """There is room for the whole way."""
        return self.peak <= self.free


def estimate(source: Source, plan: Plan) -> Estimate:
    """Read from the headers of the base model's files; nothing is loaded. Raises ModelNotFound."""
    from sapo_backends.measure.sizing import model_size

    size, _ = model_size(local_folder(source.config), request(source.config))
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
    return Estimate(int(final * SPARE), int(peak * SPARE) + BESIDE, free_bytes(plan.target))


def default_target(model_folder: Path, source: Source, plan_label: str) -> Path:
    """exports/<checkpoint>-<format> in the model's own folder."""
    name = source.checkpoint.name if source.checkpoint is not None else "base"
    return model_folder / "exports" / f"{name}-{plan_label}"


def formats_for(source: Source) -> tuple[Format, ...]:
    """The formats that this model can have: an adapter only where one was trained. Raises ModelNotFound."""
    from sapo_backends.measure.sizing import model_size

    _, method = model_size(local_folder(source.config), request(source.config))
    return tuple(name for name in FORMATS if name != "adapter" or method == "lora")


def check(source: Source, plan: Plan) -> None:
    """The model has that format, the target is new or an empty folder, and the disk has room.

    Raises UsageError, ExportFailed, ModelNotFound.
    """
    if plan.format not in formats_for(source):
        raise UsageError(
            f"{source.record.name} has no LoRA adapter: all of its weights were trained. Use --format hf, gguf or mlx."
        )
    if plan.target.is_file() or (plan.target.is_dir() and any(plan.target.iterdir())):
        raise UsageError(f"{plan.target} is there already and not empty. Name another folder: --to FOLDER")
    found = estimate(source, plan)
    if not found.fits:
        raise ExportFailed(
            f"This needs {size_text(found.peak)} on the disk of {plan.target.parent}, and {size_text(found.free)} are "
            "free. Free some, name a folder on another disk with --to, or choose fewer bits (gguf, q4_0)."
        )


@contextlib.contextmanager
def beside(target: Path) -> Iterator[Path]:
    """A folder beside `target` that becomes it when the block ends well; otherwise nothing is left. Raises AppError."""
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
        partial.mkdir()
    except FileExistsError as error:
        raise UsageError(f"{target} is being written already.") from error
    except OSError as error:
        raise AppError(
            f"Cannot write in {target.parent} ({error.strerror}). Name another folder: --to FOLDER"
        ) from error
    try:
        yield partial
        if target.exists():
            target.rmdir()
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _remove_leftovers(target: Path) -> None:
    """Half exports to the same place by processes that were killed."""
    import psutil

    pattern = re.compile(rf"^\.{re.escape(target.name)}\.(\d+)\.partial$")
    for folder in target.parent.iterdir():
        match = pattern.match(folder.name)
        if match and int(match[1]) != os.getpid() and not psutil.pid_exists(int(match[1])):
            shutil.rmtree(folder, ignore_errors=True)
