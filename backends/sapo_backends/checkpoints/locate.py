"""Where a model's files are: the bundled starter, a local folder or GGUF file, the hub's cache; and which model they are."""

from __future__ import annotations

import hashlib
import json
import os
import re
from importlib.resources import files
from pathlib import Path

from sapo_backends.base import Progress
from sapo_backends.checkpoints import hub_cache, inspection, local_models
from sapo_backends.checkpoints.gguf_view import gguf_of, require_same, view_folder
from sapo_backends.checkpoints.spec import require_file_size, require_sane_numbers
from sapo_backends.errors import ModelNotFound, did_you_mean

# Only safetensors, GGUF and JSON are ever fetched or read: pickled weights and remote code could run anything.

BUNDLED = ("starter", "starter-1m")
WANTED = "Give a GGUF file, or the folder with config.json, model.safetensors and tokenizer.json."
_OTHER_HEADS = re.compile(r"\w+For(MaskedLM|\w+Classification|QuestionAnswering|MultipleChoice|NextSentencePrediction)")
"""Architectures that do not predict a next token."""
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")


def resolve_model(model: str, progress: Progress | None = None) -> Path:
    """The folder of a model; a hub id that is not on this disk yet is downloaded first.

    A cached model is used as it is, without asking the network: the base must not change under an adapter trained on
    it. Raises ModelNotFound, DownloadFailed, and what `progress` raises.
    """
    if not is_hub_id(model):
        return resolve_local_model(model, progress)
    here = hub_cache.find_snapshot(model)
    if here is None:
        from sapo_backends.checkpoints.hub_download import download_model

        here = download_model(model, progress)
    hub_cache.pin_commit(model, here.name)
    return validate_model_folder(here)


def is_hub_id(model: str) -> bool:
    """Whether this names a hub repository: it is written owner/name and is not a bundled model or an existing file or
    folder."""
    return (
        not model.lower().endswith(".gguf")
        and model not in BUNDLED
        and not os.path.exists(os.path.expanduser(model))
        and bool(_HUB_ID.match(model))
    )


def existing_folder(model: str) -> Path | None:
    """The folder with this path (~ is expanded); None if there is none or it may not be read."""
    path = os.path.expanduser(model)
    return Path(path) if model not in BUNDLED and os.path.isdir(path) else None


def gguf_file(model: str) -> Path | None:
    """The GGUF file with this path, whatever its extension; None if there is none."""
    path = os.path.expanduser(model)
    here = model not in BUNDLED and os.path.isfile(path)
    return Path(path) if here and local_models.is_gguf(Path(path)) else None


def resolve_local_model(model: str, progress: Progress | None = None) -> Path:
    """The folder of a model that is already on this disk; nothing is downloaded. Raises ModelNotFound, and what
    `progress` raises while a GGUF file is read."""
    if model in BUNDLED:
        return validate_model_folder(bundled_model_folder(model))
    if (folder := existing_folder(model)) is not None:
        return validate_model_folder(folder)
    if is_hub_id(model):
        if (here := hub_cache.find_snapshot(model)) is None:
            raise ModelNotFound(f"{model} is not on this disk.")
        return validate_model_folder(here)
    if local_models.is_named(model) or local_models.is_tagged(model):
        return resolve_local_model(str(local_models.path_of(model)), progress)
    if (file := gguf_file(model)) is not None:
        return validate_model_folder(view_folder(file, progress))
    if os.path.isfile(os.path.expanduser(model)):
        raise ModelNotFound(f"{model} is a file and no model. {WANTED}")
    if os.path.lexists(os.path.expanduser(model)):  # a pipe, a device, a dangling link
        raise ModelNotFound(f"{model} is neither a file nor a folder. {WANTED}")
    if model.lower().endswith(".gguf"):
        raise ModelNotFound(f"There is no file {model}. Name where it is now.")
    hint = did_you_mean(model, BUNDLED)
    raise ModelNotFound(
        f"There is no model {model!r}.{hint} Give starter, a GGUF file, a folder, or a hub id such as owner/name."
    )


def bundled_model_folder(name: str) -> Path:
    """The folder of a bundled model. Raises ModelNotFound if this installation lacks it."""
    folder = _bundled_path(name)
    if not folder.is_dir():
        raise ModelNotFound(f"The bundled model {name!r} is not part of this installation. Install the app again.")
    return folder


def _bundled_path(name: str) -> Path:
    try:
        return Path(str(files("sapo_assets"))) / "models" / name
    except ModuleNotFoundError:
        return Path("sapo_assets/models") / name


def validate_model_folder(folder: Path) -> Path:
    """Returns the folder if it holds the config of a causal language model and all of its safetensors files, and if a
    child process got through its small files. Raises ModelNotFound, which says what is missing."""
    if not (folder / "config.json").is_file():
        if files := sorted(folder.glob("*.gguf")):
            raise ModelNotFound(
                f"{folder} holds GGUF files and no Hugging Face model. Give the file itself: {files[0]}"
            )
        raise ModelNotFound(
            f"{folder} has no config.json, so it is not a Hugging Face model folder. {WANTED} "
            "An adapter alone cannot be trained."
        )
    weights = [file.name for file in weight_files(folder)]
    if not weights:
        text = f"{folder} has no *.safetensors weights."
        if any(folder.glob("*.bin")) or any(folder.glob("*.pt")):
            text += " Its pickled weights are not read, because they can run code; convert them: load with transformers and "
            text += "save_pretrained(FOLDER)."
        raise ModelNotFound(text)
    if lacking := hub_cache.missing_weight_files(folder, weights):
        more = f" and {len(lacking) - 1} more of its files" if len(lacking) > 1 else ""
        raise ModelNotFound(f"{folder} lacks {lacking[0]}{more}. Copy or download the model again.")
    config = _config(folder)
    if key := _code_named(config):
        raise ModelNotFound(f"{folder}: config.json has code run by its entry {key}. This app runs none of a model.")
    for name in _architectures(config):
        if _OTHER_HEADS.fullmatch(name):
            raise ModelNotFound(
                f"{folder}: {name} is no causal language model. Choose one that writes text (…ForCausalLM)."
            )
    require_sane_numbers(config)
    shipped = [path for name in BUNDLED if (path := _bundled_path(name)).is_dir()]
    inspection.require_harmless(folder, weight_files(folder), shipped)
    return folder


def _config(folder: Path) -> object:
    """None if it is damaged; whoever reads the whole config reports that."""
    require_file_size(folder / "config.json")
    try:
        return json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError, MemoryError):
        return None


def _code_named(config: object) -> str:
    """The config entry by which a library would run code that comes with the model: a file in the folder (mlx_lm's
    model_file), or a hub kernel written owner/name (transformers' attn_implementation and the like, also for parts of
    a model)."""
    left: list[tuple[str, object]] = [("", config)]
    while left:
        key, value = left.pop()
        if isinstance(value, dict):
            left += [(key if key.endswith("_implementation") else str(name), part) for name, part in value.items()]
        elif isinstance(value, list):
            left += [(key, part) for part in value]
        elif isinstance(value, str) and (key == "model_file" or (key.endswith("_implementation") and "/" in value)):
            return key
    return ""


def _architectures(config: object) -> list[str]:
    """The class names that the config lists."""
    named = config.get("architectures") if isinstance(config, dict) else None
    return [str(name) for name in named] if isinstance(named, list) else []


def require_tokenizer(folder: Path) -> None:
    """Raise ModelNotFound unless the folder holds a fast tokenizer's file."""
    if not (folder / "tokenizer.json").is_file():
        raise ModelNotFound(f"{folder} has no tokenizer.json. Save the model with a fast tokenizer.")


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a model's weights, each tensor once: the folder's safetensors, or the GGUF file that it
    stands for."""
    if (file := gguf_of(folder)) is not None:
        require_same(folder, file)
        return [file]
    return [folder / name for name in sorted(hub_cache.one_set({file.name for file in folder.glob("*.safetensors")}))]


# Identifies the model in a folder, whatever its name and location, by a digest of its content.

SAMPLE = 1 << 16
"""Bytes read from each weight file at its beginning (names and shapes of all tensors), middle and end. Reading a whole
3 GB file would take longer than loading it."""


def content_id(folder: Path) -> str:
    """Equal for copies of one model; different after training, or for another model of the same shape. Raises OSError."""
    files, digest = weight_files(folder), hashlib.sha256()
    if not files:
        raise FileNotFoundError(f"{folder} has no weights")
    for file in files:
        size = file.stat().st_size
        digest.update(b"%d\0" % size)
        with file.open("rb") as stream:
            for start in (0, size // 2, max(0, size - SAMPLE)):
                stream.seek(start)
                digest.update(stream.read(SAMPLE))
    return digest.hexdigest()[:32]
