"""Where a model's files are: the bundled starter, a local Hugging Face folder, or a hub id.

Only safetensors and JSON are ever fetched or read: pickled weights and remote code could run anything.
"""

from __future__ import annotations

import difflib
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from sapo_backends.base import ModelNotFound, Progress

BUNDLED = ("starter", "starter-1m")
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
_PATTERNS = ["*.safetensors", "*.safetensors.index.json", "*config.json", "tokenizer*.json", "chat_template.jinja"]


def resolve(model: str, progress: Progress | None = None) -> Path:
    """The folder of a model, downloaded first if it is a hub id. Raises ModelNotFound."""
    if model in BUNDLED:
        return checked(bundled(model))
    folder = Path(model).expanduser()
    if folder.is_dir():
        return checked(folder)
    if _HUB_ID.match(model) and not folder.exists():
        return checked(_download(model, progress))
    close = difflib.get_close_matches(model, BUNDLED, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ModelNotFound(f"There is no model {model!r}.{hint} Give starter, a folder, or a hub id such as owner/name.")


def bundled(name: str) -> Path:
    """The folder of a bundled model. Raises ModelNotFound when this installation lacks it."""
    try:
        folder = Path(str(files("sapo_assets"))) / "models" / name
    except ModuleNotFoundError:
        folder = Path("sapo_assets/models") / name
    if not folder.is_dir():
        raise ModelNotFound(f"The bundled model {name!r} is not part of this installation. Install the app again.")
    return folder


def checked(folder: Path) -> Path:
    """The folder, if it holds a config and safetensors. Raises ModelNotFound that says what is missing."""
    if not (folder / "config.json").is_file():
        raise ModelNotFound(f"{folder} has no config.json, so it is not a Hugging Face model folder.")
    if not weight_files(folder):
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        reason = " Its pickled weights are not read, because they can run code; convert them." if pickled else ""
        raise ModelNotFound(f"{folder} has no *.safetensors weights.{reason}")
    return folder


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, without adapters."""
    return [f for f in sorted(folder.glob("*.safetensors")) if not f.name.startswith("adapter_")]


def _download(repo: str, progress: Progress | None) -> Path:
    """Fetch a hub model, or find it in the local cache when there is no network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(repo, allow_patterns=_PATTERNS, tqdm_class=_reporter(repo, progress)))
    except RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"The hub has no public model {repo!r}. Check the name, or log in if it is gated."
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        raise ModelNotFound(
            f"{repo!r} is not downloaded and the hub cannot be reached. Connect once, or use the bundled 'starter'."
        ) from error


def _reporter(repo: str, progress: Progress | None) -> Any:
    """A silent tqdm class that passes the fraction done to `progress`."""
    from huggingface_hub.utils.tqdm import tqdm

    class Reporter(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]
            self._done = 0.0
            self._all = float(kwargs.get("total") or 0.0)

        def update(self, n: float | None = 1) -> bool | None:
            self._done += n or 0.0
            total = max(self._all, float(self.total or 0.0)) if hasattr(self, "total") else self._all
            if progress is not None and total > 0:
                progress(min(self._done / total, 1.0), f"downloading {repo}")
            return None

    return Reporter
