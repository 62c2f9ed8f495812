"""Where everything lies. SAPO_HOME moves all of it into one folder (tests, portable use, a USB stick)."""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

from sapo_desktop.errors import AppError

_SOCKET_LIMIT = 103


@dataclass(frozen=True)
class Home:
    """The folders of one installation. A node, its dashboard and every verb share one Home."""

    config: Path
    data: Path
    cache: Path
    logs: Path
    runtime: Path

    @classmethod
    def find(cls) -> Home:
        """The home of this person: SAPO_HOME, or the platform's folders. Nothing is made."""
        root = os.environ.get("SAPO_HOME")
        if root:
            base = Path(root).expanduser().absolute()
            return cls(base, base / "data", base / "cache", base / "logs", _short(base / "run"))
        import platformdirs

        dirs = platformdirs.PlatformDirs("sapo-desktop", appauthor=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without XDG_RUNTIME_DIR a folder under /tmp is used: 0700 and checked
            runtime = dirs.user_runtime_path
        folders = dirs.user_config_path, dirs.user_data_path, dirs.user_cache_path, dirs.user_log_path
        return cls(*folders, _short(runtime))

    @property
    def settings(self) -> Path:
        """The settings file."""
        return self.config / "config.toml"

    @property
    def invite(self) -> Path:
        """The saved invite: a secret, mode 0600."""
        return self.config / "invite"

    @property
    def models(self) -> Path:
        """My models, a folder each."""
        return self.data / "models"

    @property
    def runs(self) -> Path:
        """Runs of versions that had no models yet; each becomes a model at the next start (services.models.shelf.adopt)."""
        return self.data / "runs"

    @property
    def tasks(self) -> Path:
        """The person's own tasks, a folder each."""
        return self.data / "tasks"

    @property
    def socket(self) -> Path:
        """The running node's control socket."""
        return self.runtime / "node.sock"

    @property
    def lock(self) -> Path:
        """Held by the node that runs."""
        return self.runtime / "node.lock"

    @property
    def node_log(self) -> Path:
        """What the node logged today."""
        return self.logs / "node.log"

    def prepare(self) -> None:
        """Make the folders. Raises AppError when one cannot be written."""
        for folder in (self.config, self.data, self.models, self.cache, self.logs, self.runtime):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                if not os.access(folder, os.W_OK):
                    raise PermissionError(f"{folder} is read-only")
            except OSError as error:
                raise AppError(
                    f"Cannot write to {folder} ({error.strerror or error}). "
                    "Make it writable, or set SAPO_HOME to a folder of your own."
                ) from error
        self.runtime.chmod(0o700)


def _short(folder: Path) -> Path:
    """The folder, or a short stand-in under the temporary folder when a socket's path would not fit."""
    if len(os.fsencode(folder / "node.sock")) <= _SOCKET_LIMIT:
        return folder
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"sapo-{digest}"
