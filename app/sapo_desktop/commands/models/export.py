"""`sapo-desktop export`: the trained model in a format that other programs load."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from sapo_backends.checkpoints import local_models
from sapo_backends.errors import size_text
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home, restore_shell_umask, typed_target
from sapo_desktop.streams import print_progress


def add_arguments(parser: argparse.ArgumentParser, _verb: str) -> None:
    """See the module's docstring."""
    from sapo_desktop.services.models.exports import FORMATS, QUANTS

    formats = "; ".join(f"{name}: {info.what}" for name, info in FORMATS.items())
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="the model (default: the one trained last)")
    parser.add_argument("--format", choices=list(FORMATS), help=f"{formats} (default: hf)")
    parser.add_argument(
        "--quant",
        choices=QUANTS,
        default="f16",
        help="bits of a GGUF file; same: as the GGUF base, with an adapter in its codes (after full fine-tuning it is rounded, "
        "which needs llama.cpp) (default: f16)",
    )
    parser.add_argument(
        "--checkpoint", default="latest", help="latest, base or a checkpoint's number (default: latest)"
    )
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="where to (default: exports/ in the model's folder)")
    parser.add_argument(
        "--to-lmstudio", action="store_true", help="as a GGUF file into LM Studio's folder, where it lists the model"
    )
    parser.add_argument(
        "--no-verify", action="store_true", help="do not load the result again with the library that it is for"
    )


def lm_studio_target(named: Path | None, slug: str, form: str | None = None) -> Path:
    """PUBLISHER/MODEL in LM Studio's folder of models. Raises UsageError where it has none, or a folder or another format was
    named too."""
    if form not in (None, "gguf"):
        raise UsageError(f"LM Studio gets a GGUF file, not the format {form}: leave --format or --to-lmstudio out.")
    if named:
        raise UsageError("--to and --to-lmstudio both say where to: leave one out.")
    folder = next((folder for folder in local_models.lm_studio_folders() if folder.is_dir()), None)
    if folder is None:
        raise UsageError("LM Studio has no folder of models here. Start it once, or name a folder: --to FOLDER")
    return folder / "sapo-desktop" / slug


def main(args: argparse.Namespace) -> int:
    """Exit code 0 if the export was written and, unless --no-verify, verified by reading it back."""
    from sapo_desktop.services.models import control
    from sapo_desktop.services.models.checkpoints import weights_of_model
    from sapo_desktop.services.models.exports import ExportPlan, ExportSource, create_export, default_target
    from sapo_desktop.services.models.exports.card import record_of
    from sapo_desktop.services.models.shelf import store

    home = Home.find()
    home.prepare()
    newest = args.checkpoint == "latest"
    model = store.find_model(home, args.name, trained=args.checkpoint != "base")
    unsaved = asyncio.run(control.unsaved_rounds(home, model)) if newest else 0
    chosen = weights_of_model(store.read_model(model.folder), args.checkpoint)
    rounds = store.rounds_of(chosen.checkpoint) if chosen.checkpoint is not None else 0
    source = ExportSource(
        chosen.config, chosen.checkpoint, record_of(model.name, chosen.config, model.folder / "journal.db", rounds)
    )
    if args.to_lmstudio:
        args.format, args.to = "gguf", lm_studio_target(args.to, source.record.slug, args.format)
    args.format = args.format or "hf"
    label = ExportPlan(args.format, Path(), args.quant).label
    target = typed_target(args.to or default_target(model.folder, source, label))
    if args.to:
        restore_shell_umask()
    done = create_export(source, ExportPlan(args.format, target, args.quant, not args.no_verify), print_progress)
    print(f"Wrote {chosen.label} as {args.format} ({size_text(done.size)}) to\n{done.folder}\n{done.sentence()}")
    if unsaved:
        print("The node has trained on since, which is not saved yet. To have that too, pause it and export once more.")
    return 0
