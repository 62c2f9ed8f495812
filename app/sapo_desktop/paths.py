"""Paths of everything the app stores, and who may read it. SAPO_HOME moves all of it into one folder (tests, portable use, a
USB stick)."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

from sapo_desktop.errors import AppError, UsageError

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
        """The Home of this user: SAPO_HOME, or the platform's folders. Creates nothing. Raises AppError if another account
        created the folder for the sockets."""
        root = os.environ.get("SAPO_HOME")
        if root:
            base = typed_path(root)
            return cls(base, base / "data", base / "cache", base / "logs", _ours(_short(base / "run")))
        import platformdirs

        dirs = platformdirs.PlatformDirs("sapo-desktop", appauthor=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without XDG_RUNTIME_DIR a folder under /tmp is used: 0700 and checked
            runtime = dirs.user_runtime_path
        folders = dirs.user_config_path, dirs.user_data_path, dirs.user_cache_path, dirs.user_log_path
        return cls(*folders, _ours(_short(_of_home(runtime, dirs.user_data_path))))

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
        """The user's models, one folder each."""
        return self.data / "models"

    @property
    def tasks(self) -> Path:
        """The user's custom tasks, one folder each."""
        return self.data / "tasks"

    @property
    def written_answers(self) -> Path:
        """Correct answers that the person wrote to training questions (contribute --answer)."""
        return self.data / "written-answers.jsonl"

    @property
    def socket(self) -> Path:
        """The running node's control socket."""
        return self.runtime / "node.sock"

    @property
    def lock(self) -> Path:
        """The lock that a running node holds."""
        return self.runtime / "node.lock"

    @property
    def node_log(self) -> Path:
        """The node's log, rotated by size."""
        return self.logs / "node.log"

    def prepare(self) -> None:
        """Create the folders, private to their owner: they hold rollouts, tasks and logs. Raises AppError if one fails."""
        for folder in (self.config, self.data, self.models, self.cache, self.logs, self.runtime):
            try:
                for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
                    # XDG_RUNTIME_DIR itself too, which otherwise no longer counts once it exists
                    missing.mkdir(0o700, exist_ok=True)
                if not os.access(folder, os.W_OK):
                    raise PermissionError(f"{folder} is read-only")
            except OSError as error:
                raise AppError(
                    f"Cannot write to {folder} ({error.strerror or error}). "
                    "Make it writable, or set SAPO_HOME to a folder of your own."
                ) from error
        self.runtime.chmod(0o700)
        for folder in (self.data, self.cache, self.logs):  # earlier versions left them readable by everybody
            with contextlib.suppress(OSError):
                folder.chmod(0o700)


def typed_path(text: str | Path) -> Path:
    """The absolute form of a typed path, with ~ expanded; it need not exist. Raises UsageError if there
    is no such home folder, or if the path is invalid or not accessible to this account."""
    shown = str(text)[:200]
    try:
        path = Path(text).expanduser().absolute()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
    except RuntimeError as error:  # what expanduser raises
        raise UsageError(f"There is no home folder for {shown}: write ~/ for your own, or the whole path.") from error
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or error
        raise UsageError(f"Cannot use the path {shown} ({why}). Write one in a folder of your own.") from error
    return path


def typed_target(text: str | Path) -> Path:
    """Like typed_path, for a path to write to. Also raises UsageError if a parent of the path is a file."""
    path = typed_path(text)
    if file := next((parent for parent in path.parents if parent.is_file()), None):
        raise UsageError(f"{file} is a file, so nothing can be written below it. Name another place.")
    return path


def own_command() -> list[str]:
    """The command that starts this app again: a frozen app is its own interpreter and takes no -m. -P, so that no module is
    imported from the current folder."""
    return [sys.executable] if getattr(sys, "frozen", False) else [sys.executable, "-P", "-m", "sapo_desktop"]


def quote_command(*words: str) -> str:
    """A command line that a person can copy: names with spaces are quoted."""
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)


def _of_home(runtime: Path, data: Path) -> Path:
    """The runtime folder of this home: all sessions of a user share the system's, so another home directory gets a subfolder."""
    if sys.platform in ("win32", "darwin"):  # there it is inside the home directory anyway
        return runtime
    import pwd

    with contextlib.suppress(KeyError):  # a container without a passwd entry for its user
        if data == Path(pwd.getpwuid(os.getuid()).pw_dir) / ".local" / "share" / data.name:
            return runtime
    return runtime / hashlib.sha256(os.fsencode(data)).hexdigest()[:12]


def _short(folder: Path) -> Path:
    """The folder, or a short stand-in under the temporary folder when a socket's path would not fit."""
    if len(os.fsencode(folder / "node.sock")) <= _SOCKET_LIMIT:
        return folder
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"sapo-{digest}"


def _ours(folder: Path) -> Path:
    """The folder. Raises AppError if it, or a parent of it below the temporary folder, belongs to another account, which
    could then answer in place of this user's node."""
    shared = Path(tempfile.gettempdir())
    below = [place for place in folder.parents if shared in place.parents]
    for place in (folder, *below) if hasattr(os, "getuid") else ():
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # prepare() creates it, or says why it cannot
            if {place.lstat().st_uid, place.stat().st_uid} != {os.getuid()}:
                raise AppError(
                    f"{place} belongs to another account. Remove it, or set SAPO_HOME to a short path of your own."
                )
    return folder


# File permissions: the app's own files are private to their owner; files written to a path that a person named follow the umask
# of the person's shell.

_shell_umask = -1


def set_private_umask() -> None:
    """Call once at the start of the process; child processes inherit the umask. Windows has no such modes."""
    global _shell_umask
    _shell_umask = os.umask(0o077)


def restore_shell_umask() -> None:
    """For the rest of a verb that writes to a path the person named."""
    if _shell_umask >= 0:
        os.umask(_shell_umask)


def shell_umask() -> int:
    """The shell's umask, for starting another process; -1 leaves the umask unchanged."""
    return _shell_umask
