"""Models on this computer: those of LM Studio, Ollama, llama.cpp and the hub, and downloads. Nothing is written.

    LM Studio   ~/.lmstudio/models/PUBLISHER/MODEL/FILE.gguf, or the folder in its settings.json, or an older default
    Ollama      ~/.ollama/models or OLLAMA_MODELS: manifests/HOST/NAMESPACE/NAME/TAG names a blob, blobs/sha256-… holds
    it llama.cpp   ~/.cache/llama.cpp or LLAMA_CACHE: the files, and manifest=OWNER=REPOSITORY=TAG.json beside them the
    hub     models--OWNER--NAME/snapshots/COMMIT: GGUF files, or a Hugging Face folder
    downloads   the GGUF files in the Downloads folder itself; not on a Mac, which would ask whether the terminal may look

Here a model is named PLACE:NAME, "ollama:qwen2.5-coder:0.5b" or "lmstudio:SmolLM2-135M-Instruct-Q4_K_M", which `--base`
takes; an Ollama model also as Ollama writes it. These folders belong to other programs, so nothing in them is trusted:
the number of entries and the size of manifests are limited, digests are validated, no folder is entered twice through
links, and anything unreadable becomes a note.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import msgspec
import platformdirs

from sapo_backends.checkpoints import hub_cache
from sapo_backends.errors import ModelNotFound, did_you_mean

MAGIC = b"GGUF"
OLLAMA, LMSTUDIO, LLAMACPP, HUB, DOWNLOADS = "ollama", "lmstudio", "llamacpp", "hub", "downloads"
TITLES = {
    OLLAMA: "Ollama",
    LMSTUDIO: "LM Studio",
    LLAMACPP: "llama.cpp",
    HUB: "Hugging Face",
    DOWNLOADS: "Downloads",
}
"""Place -> its name for people. A model that is in two places is listed under the first."""
ENTRIES = 20_000
"""Maximum number of entries examined in a place's folders."""
MODELS = 500
"""Maximum models of a place."""
MANIFEST_LIMIT = 1 << 20
"""Maximum bytes of a manifest or of another program's settings; real ones have a few hundred."""
_DEPTH = 5
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf", re.IGNORECASE)
_OLLAMA_NAME = re.compile(r"[\w.-]{2,}(/[\w.-]+){0,3}:[\w.-]+")
_WEIGHTS, _ADAPTER = "application/vnd.ollama.image.model", "application/vnd.ollama.image.adapter"


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on the disk. name: as its program calls it; path: its file, its first part, or its folder; bytes: of all
    parts.

    blocked: why it cannot be used as it is; "" if nothing is known against it without opening it.
    """

    place: str
    name: str
    path: Path
    bytes: int
    parts: int = 1
    blocked: str = ""
    also: tuple[str, ...] = ()

    @property
    def base(self) -> str:
        """The name that `--base` takes; the hub id for a hub folder."""
        return self.name if self.place == HUB and self.path.is_dir() else f"{self.place}:{self.name}"

    @property
    def title(self) -> str:
        """The place's name for people."""
        return TITLES[self.place]


@dataclass
class LocalModelSearch:
    """The results so far; another thread may read them during the search. left_out: how many models cannot be trained,
    such as those that turn text into vectors. deadline: in monotonic seconds."""

    deadline: float = float("inf")
    models: list[LocalModel] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: int = 0
    _left: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, model: LocalModel) -> None:
        """Add a model."""
        with self._lock:
            self.models.append(model)

    def leave_out(self) -> None:
        """Count a model that cannot be trained."""
        with self._lock:
            self.left_out += 1

    def note(self, text: str) -> None:
        """Add a note unless it is there already."""
        with self._lock:
            if text not in self.notes:
                self.notes.append(text)

    def may_go_on(self, place: str) -> bool:
        """Whether there is time left and another entry of that place may be examined."""
        left = self._left[place] = self._left.get(place, ENTRIES) - 1
        if left < 0:
            self.note(f"{TITLES[place]}: more than {ENTRIES:,} entries; the rest was not looked at.")
            return False
        if time.monotonic() > self.deadline:
            self.note(f"{TITLES[place]}: looking took too long; not everything was looked at.")
            return False
        return True

    def unreadable(self, place: str, path: Path, error: OSError) -> None:
        """Note a folder or file that may not be read; a missing one is not noted."""
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            self.note(f"{TITLES[place]}: {path} cannot be read ({error.strerror or error}).")


def find_local_models(deadline: float = float("inf"), places: tuple[str, ...] = tuple(TITLES)) -> LocalModelSearch:
    """All models in these places. Blocks on the disk, so an event loop calls it in a thread."""
    search = LocalModelSearch(deadline)
    for place in places:
        LOOKS[place](search)
    return search


def is_named(model: str) -> bool:
    """Whether a base is a model in one of these places: PLACE:NAME, or NAME:TAG if Ollama has that. A tag alone is not
    enough: other programs' models have colons in their names too."""
    place, colon, name = model.partition(":")
    if colon and name and place in TITLES:
        return not os.path.exists(os.path.expanduser(model))
    return is_tagged(model) and any(local.name == model for local in find_local_models(places=(OLLAMA,)).models)


def is_tagged(model: str) -> bool:
    """Whether this is written NAME:TAG, as Ollama writes its models."""
    return _OLLAMA_NAME.fullmatch(model) is not None and not os.path.exists(os.path.expanduser(model))


def path_of(model: str) -> Path:
    """The file or folder of a base that is_named. Raises ModelNotFound, which names similar models or what blocks this
    one."""
    place, _, name = model.partition(":")
    if place not in TITLES:
        place, name = OLLAMA, model
    search = find_local_models(places=(place,))
    wanted = _with_tag(name) if place == OLLAMA else name
    hits = [local for local in search.models if wanted in (local.name, *_longer_names(local))]
    if not hits:
        names = sorted({local.name for local in search.models})
        listing = f" {TITLES[place]} has: {', '.join(names[:8])}." if names else f" {TITLES[place]} has no models here."
        hint = did_you_mean(wanted, names) or listing
        raise ModelNotFound(
            f"{TITLES[place]} has no model {name!r} on this computer.{hint} {' '.join(search.notes)}".strip()
        )
    if place != OLLAMA and len({local.path.resolve() for local in hits}) > 1:  # Ollama's own folder comes first
        paths = ", ".join(str(local.path) for local in hits[:4])
        raise ModelNotFound(f"{TITLES[place]} has {len(hits)} models called {name!r}. Give the file: {paths}")
    if hits[0].blocked:
        raise ModelNotFound(f"{model} cannot be used: {hits[0].blocked}.")
    return hits[0].path


def _with_tag(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _longer_names(model: LocalModel) -> Iterator[str]:
    """PUBLISHER/MODEL/NAME and MODEL/NAME, which tell apart files of the same name in two folders."""
    if model.place != OLLAMA:
        folders = model.path.parent.parts
        yield f"{folders[-1]}/{model.name}" if folders else model.name
        yield "/".join((*folders[-2:], model.name))


# The places


def ollama_folders() -> list[Path]:
    """Where Ollama keeps models: the configured folder, the person's default, and that of its Linux service."""
    configured = os.environ.get("OLLAMA_MODELS", "").strip()
    service = ("/usr/share/ollama/.ollama/models", "/var/lib/ollama/models", "/var/lib/ollama/.ollama/models")
    own = [Path(os.path.expanduser(configured))] if configured else []
    return _once([*own, _home(".ollama", "models"), *map(Path, service if sys.platform.startswith("linux") else ())])


def lm_studio_folders() -> list[Path]:
    """Where LM Studio keeps models: the folder in its settings, its default, and its default before 0.3."""
    homes = [_home(".lmstudio"), _home(".cache", "lm-studio")]
    pointer = _small_file(_home(".lmstudio-home-pointer"))
    if pointer is not None and (folder_text := pointer.decode("utf-8", "replace").strip()):
        homes.insert(0, Path(folder_text))
    chosen = [custom for home in homes if (custom := _downloads_folder(home / "settings.json"))]
    return _once([*chosen, *(home / "models" for home in homes)])


def llama_cpp_folders() -> list[Path]:
    """Where llama.cpp keeps its downloads."""
    if named := os.environ.get("LLAMA_CACHE", "").strip():
        return [Path(os.path.expanduser(named))]
    if sys.platform == "darwin":
        return [_home("Library", "Caches", "llama.cpp")]
    if sys.platform == "win32":
        return [Path(os.environ.get("LOCALAPPDATA") or _home("AppData", "Local"), "llama.cpp")]
    return [Path(os.environ.get("XDG_CACHE_HOME") or _home(".cache"), "llama.cpp")]


def _home(*parts: str) -> Path:
    return Path(os.path.expanduser("~"), *parts)


def _once(folders: list[Path]) -> list[Path]:
    return list(dict.fromkeys(folders))


class _LmStudioSettings(msgspec.Struct):
    downloadsFolder: str = ""


def _downloads_folder(settings: Path) -> Path | None:
    try:
        named = msgspec.json.decode(_small_file(settings) or b"{}", type=_LmStudioSettings).downloadsFolder
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return Path(named) if os.path.isabs(named) and "\0" not in named else None


class _Layer(msgspec.Struct):
    mediaType: str
    digest: str


class _Manifest(msgspec.Struct):
    layers: list[_Layer] = []


def _look_in_ollama(seen: LocalModelSearch) -> None:
    for root in ollama_folders():
        manifests = root / "manifests"
        for file in _files(seen, OLLAMA, manifests):
            parts = file.relative_to(manifests).parts
            if len(parts) >= 3 and not _full(seen, OLLAMA):
                _add_manifest(seen, root, file, parts)


def _add_manifest(seen: LocalModelSearch, root: Path, file: Path, parts: tuple[str, ...]) -> None:
    """Add an Ollama model, whose manifest says which blob holds the weights."""
    *namespace, name, tag = parts[1:] if parts[0] == "registry.ollama.ai" else parts
    called = "/".join([*(part for part in namespace if part != "library"), f"{name}:{tag}"])
    content = _small_file(file)
    try:
        layers = msgspec.json.decode(content or b"", type=_Manifest).layers
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        seen.note(f"Ollama: the manifest of {called} cannot be read; it was passed over.")
        return
    digests = [
        match[1] for layer in layers if layer.mediaType == _WEIGHTS and (match := _DIGEST.fullmatch(layer.digest))
    ]
    if not digests:  # a cloud model, or one in another format
        seen.leave_out()
        return
    blob, blocked = root / "blobs" / f"sha256-{digests[0]}", ""
    size = _size(blob)
    if size is None:
        blocked = "its file is missing; pull it again with Ollama"
    elif any(layer.mediaType == _ADAPTER for layer in layers):
        blocked = "it is another model with an adapter; choose that model"
    seen.add(LocalModel(OLLAMA, called, blob, size or 0, blocked=blocked))


def _look_in_lm_studio(seen: LocalModelSearch) -> None:
    for root in lm_studio_folders():
        _add_files(seen, LMSTUDIO, list(_files(seen, LMSTUDIO, root)))


def _look_in_llama_cpp(seen: LocalModelSearch) -> None:
    for root in llama_cpp_folders():
        files = list(_files(seen, LLAMACPP, root))
        fetched = [file.name.removesuffix(".json").split("=") for file in files if file.name.startswith("manifest=")]
        prefixes = [f"{part[1]}_{part[2]}_" for part in fetched if len(part) == 4]

        def called(stem: str, prefixes: list[str] = prefixes) -> str:
            """The file's name without the repository, which llama.cpp puts before it."""
            return next((stem.removeprefix(part) for part in prefixes if stem.startswith(part) and stem != part), stem)

        _add_files(seen, LLAMACPP, files, called)


def _look_in_hub(seen: LocalModelSearch) -> None:
    for place in _listing(seen, HUB, hub_cache.hub_cache_folder()):
        if not place.name.startswith("models--") or _full(seen, HUB):
            continue
        repository = place.name.removeprefix("models--").replace("--", "/", 1)
        if "/" not in repository:
            continue
        try:
            if (here := hub_cache.find_snapshot(repository)) is not None:
                size = sum(_size(Path(entry.path)) or 0 for entry in os.scandir(here))
                seen.add(LocalModel(HUB, repository, here, size))
                continue
        except OSError as error:
            seen.unreadable(HUB, place, error)
            continue
        for commit in sorted(_listing(seen, HUB, place / "snapshots"), key=_changed, reverse=True)[:1]:
            _add_files(seen, HUB, list(_files(seen, HUB, commit)))


def _look_in_downloads(seen: LocalModelSearch) -> None:
    if sys.platform != "darwin":
        folder = platformdirs.user_downloads_path()
        files = [file for file in _listing(seen, DOWNLOADS, folder) if seen.may_go_on(DOWNLOADS) and file.is_file()]
        _add_files(seen, DOWNLOADS, files)


LOOKS: dict[str, Callable[[LocalModelSearch], None]] = {
    OLLAMA: _look_in_ollama,
    LMSTUDIO: _look_in_lm_studio,
    LLAMACPP: _look_in_llama_cpp,
    HUB: _look_in_hub,
    DOWNLOADS: _look_in_downloads,
}
"""Place -> the function that searches it."""


# Files and folders


def _add_files(seen: LocalModelSearch, place: str, files: list[Path], called: Callable[[str], str] = str) -> None:
    """Add the GGUF files of a folder: parts of one model together, without image projectors."""
    split: dict[tuple[Path, str, int], dict[int, Path]] = {}
    for file in sorted(files):
        if file.suffix.lower() != ".gguf" or _full(seen, place):
            continue
        if "mmproj" in file.name.lower():
            seen.leave_out()
        elif match := _SPLIT.fullmatch(file.name):
            split.setdefault((file.parent, match["stem"], int(match["parts"])), {})[int(match["part"])] = file
        elif (size := _size(file)) is not None:
            seen.add(LocalModel(place, called(file.stem), file, size))
    for (_, stem, count), parts in split.items():
        lacking = [part for part in range(1, min(count, 1000) + 1) if part not in parts]
        blocked = f"part {lacking[0]} of {count} is missing" if lacking else ""
        size = sum(_size(file) or 0 for file in parts.values())
        seen.add(LocalModel(place, called(stem), parts[min(parts)], size, parts=count, blocked=blocked))


def _files(seen: LocalModelSearch, place: str, root: Path) -> Iterator[Path]:
    """The files below a folder. Links are followed, since people keep models on other disks, but no folder is entered
    twice."""
    left, entered = [(root, 0)], set[tuple[int, int]]()
    while left:
        folder, depth = left.pop()
        try:
            about = folder.stat()
        except OSError as error:
            seen.unreadable(place, folder, error)
            continue
        if (about.st_dev, about.st_ino) in entered and about.st_ino:
            continue
        entered.add((about.st_dev, about.st_ino))
        for entry in _listing(seen, place, folder):
            if not seen.may_go_on(place):
                return
            try:
                is_folder = entry.is_dir()
            except OSError:
                continue
            if is_folder:
                if depth < _DEPTH:
                    left.append((entry, depth + 1))
            else:
                yield entry


def _listing(seen: LocalModelSearch, place: str, folder: Path) -> list[Path]:
    """A folder's entries, in order; empty if it may not be read."""
    names: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) > ENTRIES:
                    seen.note(f"{TITLES[place]}: more than {ENTRIES:,} entries; the rest was not looked at.")
                    break
    except OSError as error:
        seen.unreadable(place, folder, error)
    return [folder / name for name in sorted(names)]


def _full(seen: LocalModelSearch, place: str) -> bool:
    full = sum(model.place == place for model in seen.models) >= MODELS
    if full:
        seen.note(f"{TITLES[place]}: more than {MODELS} models; the rest is not listed.")
    return full


def open_file(path: Path) -> IO[bytes]:
    """Open a file for reading, but never a pipe or a device, whose opening may block. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def is_gguf(path: Path) -> bool:
    """Whether a file begins like a GGUF file, whatever its name: Ollama's have no extension."""
    try:
        with open_file(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _size(path: Path) -> int | None:
    """A file's size; None for anything else, such as a dangling link or a pipe."""
    try:
        about = path.stat()
    except (OSError, ValueError):
        return None
    return about.st_size if stat.S_ISREG(about.st_mode) else None


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _small_file(path: Path) -> bytes | None:
    """The content of a small file; None if it is missing, unreadable or longer than such a file should be."""
    try:
        with open_file(path) as file:
            content = file.read(MANIFEST_LIMIT + 1)
    except OSError:
        return None
    return content if len(content) <= MANIFEST_LIMIT else None


def each_once(models: list[LocalModel]) -> list[LocalModel]:
    """Merge duplicates: a file with several names, or in two places through a link, is listed once with its other
    names."""
    by_file: dict[tuple[int, int] | Path, LocalModel] = {}
    for model in models:
        try:
            about = model.path.stat()
            key: tuple[int, int] | Path = (about.st_dev, about.st_ino) if about.st_ino else model.path.resolve()
        except OSError:
            key = Path(model.place, model.name)
        first = by_file.setdefault(key, model)
        if first is not model and model.base not in (first.base, *first.also):
            by_file[key] = replace(first, also=(*first.also, model.base))
    return list(by_file.values())
