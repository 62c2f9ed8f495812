"""Downloading a model from the hub: what the repository holds, which files are needed, and progress and error messages."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sapo_backends.base import Progress
from sapo_backends.checkpoints import hub_cache
from sapo_backends.checkpoints.hub_cache import hub_endpoint, one_set
from sapo_backends.errors import DownloadFailed, ModelNotFound, size_text

# Messages about a download: its progress, and why the hub gave nothing.


@dataclass
class DownloadProgress:
    """done, total: bytes of all files. begun: bytes already there at the start; when: its time in monotonic seconds."""

    repository: str
    total: int
    done: int
    begun: int
    when: float

    @property
    def phrase(self) -> str:
        """ "downloading owner/name: 46 MB of 270 MB, 17 %, 3.1 MB/s, about 72 s left"."""
        seconds, share = time.monotonic() - self.when, self.done / max(1, self.total)
        text = f"downloading {self.repository}: {size_text(self.done)} of {size_text(self.total)}, {100 * share:.0f} %"
        rate = (self.done - self.begun) / seconds if seconds > 1 else 0.0
        if rate <= 0:
            return text
        left = (self.total - self.done) / rate
        return (
            f"{text}, {size_text(rate)}/s, about {left / 60:.0f} min left"
            if left >= 120
            else (f"{text}, {size_text(rate)}/s, about {left:.0f} s left")
        )


class Away(DownloadFailed):
    """The hub cannot be reached now."""


def refusal_error(repository: str, status: int, code: str, named: bool) -> Exception:
    """What an unsuccessful answer means. code: the hub's own error code. named: a token was sent."""
    where = f"{hub_cache.hub_endpoint()}/{repository}"
    if code == "GatedRepo":
        log_in = "With the account of your token" if named else "Log in: sapo-desktop login. Before that"
        return ModelNotFound(
            f"{repository} is gated: its owner lets people in by name. {log_in}, accept its terms at {where}"
        )
    if status in (401, 403, 404):
        again = "Your token may not see it either." if named else "If it is private, log in: sapo-desktop login"
        return ModelNotFound(
            f"There is no public model {repository!r} at {hub_cache.hub_endpoint()}. Check the name. {again}"
        )
    text = f"{hub_cache.hub_endpoint()} answers with error {status} for {repository}"
    return Away(text) if status >= 500 or status in (408, 429) else DownloadFailed(f"{text}.")


def offline_message(repository: str, reason: str) -> str:
    """A message for when the network is unavailable: what is on this disk."""
    here = [cached.repository for cached in hub_cache.all_cached() if cached.complete]
    known = f"On this disk: {', '.join(here[:8])}, and" if here else "Use"
    return f"{repository!r} is not downloaded and {reason}. Connect once to download it. {known} the bundled 'starter'."


# What a hub repository holds and which of its files a model needs. The answers are untrusted text and are checked.

ANSWER_LIMIT = 8 << 20
"""Maximum bytes of a listing."""
SETTINGS = (
    "config.json", "generation_config.json", "tokenizer*.json", "chat_template.jinja", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "*.safetensors.index.json",
)  # fmt: skip
CARD, LICENCES = "README.md", ("LICENSE*", "LICENCE*", "NOTICE*")
"""The model card and the licence files, as patterns in upper case."""
CARD_LIMIT, LICENCES_LIMIT = 256 << 10, 8
"""Maximum bytes of such a file, and maximum number of licence files; anything beyond is not fetched."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,150}")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,60}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """digest: SHA-256 of the bytes (64 digits), or git's SHA-1 of a small file (40)."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class HubRepository:
    """files: what the model needs, its card and licence. license: as the card says, "" if not stated. parameters: 0 if
    not stated."""

    id: str
    commit: str
    gated: bool
    license: str
    parameters: int
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files that are needed."""
        return sum(file.size for file in self.files)


class _Lfs(msgspec.Struct):
    sha256: str
    size: int


class _Sibling(msgspec.Struct):
    rfilename: str
    size: int | None = None
    blobId: str = ""
    lfs: _Lfs | None = None


class _Weights(msgspec.Struct):
    total: int = 0


class _Answer(msgspec.Struct):
    sha: str
    siblings: list[_Sibling]
    gated: bool | str = False
    tags: list[str] = []
    safetensors: _Weights | None = None


def listing_url(repository: str) -> str:
    """The URL of the listing."""
    return f"{hub_endpoint()}/api/models/{repository}/revision/main?blobs=true"


def file_address(found: HubRepository, name: str) -> str:
    """The URL of a file's bytes."""
    return f"{hub_endpoint()}/{found.id}/resolve/{found.commit}/{name}"


def parse_listing(repository: str, content: bytes) -> HubRepository:
    """Parse a listing. Raises ModelNotFound if the repository has no readable model, DownloadFailed if this is not a
    listing."""
    try:
        answer = msgspec.json.decode(content, type=_Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DownloadFailed(
            f"{hub_endpoint()} answered with something that is no listing of {repository}: {error}."
        ) from error
    listed = [_remote(entry) for entry in answer.siblings if _NAME.fullmatch(entry.rfilename)]
    files = select_needed_files([entry for entry in listed if entry is not None])
    if not any(file.name == "config.json" for file in files) or not any(f.name.endswith(".safetensors") for f in files):
        pickled = any(entry.rfilename.endswith((".bin", ".pt")) for entry in answer.siblings)
        reason = " Its pickled weights are not read, because they can run code." if pickled else ""
        raise ModelNotFound(f"{repository} holds no language model as config.json and *.safetensors.{reason}")
    if not any(file.name == "tokenizer.json" for file in files):
        raise ModelNotFound(
            f"{repository} has no tokenizer.json. Choose a repository of the model with a fast tokenizer."
        )
    if not _DIGEST.fullmatch(answer.sha):
        raise DownloadFailed(f"{hub_endpoint()} names no commit of {repository}.")
    named = (tag.partition(":")[2] for tag in answer.tags if tag.startswith("license:"))
    license_ = next((word for word in named if _WORD.fullmatch(word)), "")
    parameters = answer.safetensors.total if answer.safetensors else 0
    return HubRepository(repository, answer.sha, bool(answer.gated), license_, max(0, parameters), tuple(files))


def _remote(one: _Sibling) -> RemoteFile | None:
    size, digest = (one.lfs.size, one.lfs.sha256) if one.lfs else (one.size or 0, one.blobId)
    return RemoteFile(one.rfilename, size, digest) if _DIGEST.fullmatch(digest) and size >= 0 else None


def select_needed_files(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """The settings, the tokenizer, the card with the licence, and one set of weights, smallest first; the same weights
    under another name are left out."""
    weights = {name for name in one_set({file.name for file in files}) if not name.startswith("consolidated")}
    wanted = [f for f in files if f.name in weights or any(fnmatch(f.name, pattern) for pattern in SETTINGS)]
    small = [f for f in files if f.size <= CARD_LIMIT]
    wanted += [f for f in small if f.name == CARD] + [f for f in small if is_licence(f.name)][:LICENCES_LIMIT]
    return sorted(wanted, key=lambda file: (file.name in weights, file.size, file.name))


def is_licence(name: str) -> bool:
    """Whether a file name is that of a licence."""
    return any(fnmatch(name.upper(), pattern) for pattern in LICENCES)


# Downloading a model: existing files are not fetched again, a partial file is continued, and every file is checked
# against the digest that the hub publishes.
#
# `progress` is called five times a second, whether bytes arrive or not; when it raises (Cancelled, say) the download
# stops at once and keeps its partial files for the next time.

T = TypeVar("T")
TICK_S = 0.2
CHUNK = 1 << 16
TRIES = 5
"""Consecutive connections without data before the hub counts as unreachable."""
PATIENCE_S = 20.0
"""A connection that is silent for this many seconds is replaced."""
TEMPLATES = ("chat_template.jinja", "tokenizer_config.json")
"""Files that may contain a chat template."""
SPARE = 64 << 20
"""Bytes of disk space that a download leaves free."""


def inspect_repository(repository: str) -> HubRepository:
    """What the hub holds under that id. Also downloads its config.json, which proves that it may be read, and its chat
    template, which shows whether the model always reasons.

    Raises ModelNotFound, DownloadFailed (unreachable, or forbidden by HF_HUB_OFFLINE).
    """
    return _run(_with_session(lambda hub: hub.look(repository)))


def config_of(found: HubRepository) -> Path:
    """The folder with the config.json that inspect_repository() fetched."""
    return hub_cache.repository_folder(found.id) / "snapshots" / found.commit


def download_model(repository: str, progress: Progress | None = None) -> Path:
    """The folder of a model, downloaded unless it is in the cache. Blocks; not for an event loop.

    Raises ModelNotFound, DownloadFailed, and whatever `progress` raises.
    """
    return _run(_with_session(lambda hub: hub.fetch(repository, progress)))


def remaining_bytes(found: HubRepository) -> int:
    """Bytes that are still to be downloaded."""
    return sum(file.size - _there(found, file) for file in found.files)


def require_room(found: HubRepository) -> None:
    """Raise DownloadFailed if the rest does not fit on the disk."""
    cache = hub_cache.hub_cache_folder()
    place = next(p for p in (cache, *cache.parents) if p.exists())
    rest, free = remaining_bytes(found), shutil.disk_usage(place).free
    if rest + SPARE > free:
        raise DownloadFailed(
            f"{found.id} needs {size_text(rest)} more on the disk of {cache}, {size_text(free)} is free. Free some "
            "space, or set HF_HOME to a folder on another disk."
        )


def _there(found: HubRepository, file: RemoteFile) -> int:
    """Bytes of a file that are already on the disk."""
    if (hub_cache.repository_folder(found.id) / "snapshots" / found.commit / file.name).is_file():
        return file.size
    whole = hub_cache.blob_path(found.id, file.digest)
    for path in (whole, whole.with_name(whole.name + hub_cache.PARTIAL)):
        with contextlib.suppress(OSError):
            return min(path.stat().st_size, file.size)
    return 0


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        reason = "The disk is full" if full else f"The disk refused it ({error.strerror or error})"
        raise DownloadFailed(
            f"{reason}: {hub_cache.hub_cache_folder()}. What was downloaded is kept; free some space "
            "and start again: it goes on from there."
        ) from error


async def _with_session(work: Callable[[_Hub], Awaitable[T]]) -> T:
    import aiohttp  # 200 ms: only for a model that is not here

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=PATIENCE_S)
    headers = {"User-Agent": "sapo-desktop", "Accept-Encoding": "identity"}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers, trust_env=True) as session:
        return await work(_Hub(session))


def _count(state: DownloadProgress | None, bytes_: int) -> None:
    if state is not None:
        state.done += bytes_


def _emptied(out: Any) -> None:
    """truncate() alone leaves the position, which the code reads as the number of bytes present."""
    out.seek(0)
    out.truncate()


class _Hub:
    """One hub, asked anonymously first, and with the person's token once it refused."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._headers: dict[str, str] = {}

    async def look(self, repository: str) -> HubRepository:
        if hub_cache.is_hub_offline():
            raise DownloadFailed(offline_message(repository, "HF_HUB_OFFLINE forbids the network"))
        try:
            async with self._get(repository, listing_url(repository)) as reply:
                content = await _bounded(reply)
        except Away as error:
            raise DownloadFailed(offline_message(repository, str(error))) from error
        listing = parse_listing(repository, content)
        config = next(file for file in listing.files if file.name == "config.json")
        if config.size > ANSWER_LIMIT:
            raise DownloadFailed(f"{repository} has a config.json of {size_text(config.size)}, which is none.")
        wanted = (config, *(file for file in listing.files if file.name in TEMPLATES and file.size <= ANSWER_LIMIT))
        if not all((config_of(listing) / file.name).is_file() for file in wanted):
            with _alone(repository):
                await self._files(replace(listing, files=wanted), None)
        return listing

    @contextlib.asynccontextmanager
    async def _get(self, repository: str, url: str, start: int = 0) -> Any:
        """An answer with status 200, 206 or 416. Raises ModelNotFound, DownloadFailed."""
        import aiohttp

        span = {"Range": f"bytes={start}-"} if start else {}
        try:
            reply = await self._session.get(url, headers=self._headers | span)
            if (
                reply.status in (401, 403)
                and not self._headers
                and (token := await asyncio.to_thread(hub_cache.hub_token))
            ):
                reply.close()
                self._headers = {"Authorization": f"Bearer {token}"}
                reply = await self._session.get(url, headers=self._headers | span)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Away(f"{hub_cache.hub_endpoint()} cannot be reached ({type(error).__name__})") from error
        try:
            if reply.status not in (200, 206, 416):
                raise refusal_error(
                    repository, reply.status, reply.headers.get("X-Error-Code", ""), bool(self._headers)
                )
            yield reply
        finally:
            reply.close()

    async def fetch(self, repository: str, progress: Progress | None) -> Path:
        """See download_model()."""
        listing = await self.look(repository)
        require_room(listing)
        with _alone(repository):
            return await self._fetch(listing, progress)

    async def _fetch(self, found: HubRepository, progress: Progress | None) -> Path:
        repository = found.id
        there = found.size - remaining_bytes(found)
        state = DownloadProgress(repository, found.size, there, there, time.monotonic())
        task = asyncio.create_task(self._files(found, state))
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=TICK_S)
                if progress is not None:
                    progress(min(1.0, state.done / max(1, state.total)), state.phrase)
            return await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _files(self, found: HubRepository, state: DownloadProgress | None) -> Path:
        """Fetch the listed files. state: None if none of them is a weight file, so that no progress is reported."""
        for file in found.files:
            published = hub_cache.repository_folder(found.id) / "snapshots" / found.commit / file.name
            if not published.is_file():
                if not hub_cache.blob_path(found.id, file.digest).is_file():
                    await self._file(found, file, state)
                published = hub_cache.add_to_snapshot(found.id, found.commit, file.name, file.digest)
        if state is not None:
            hub_cache.update_main_ref(found.id, found.commit)
        return published.parent

    async def _file(self, found: HubRepository, file: RemoteFile, state: DownloadProgress | None) -> None:
        """Fetch and verify one file. A partial file with wrong bytes is deleted."""
        whole = hub_cache.blob_path(found.id, file.digest)
        part = whole.with_name(whole.name + hub_cache.PARTIAL)
        part.parent.mkdir(parents=True, exist_ok=True)
        fruitless = 0
        with part.open("ab") as out:
            if out.tell() > file.size:
                _emptied(out)
                _count(state, -file.size)
            while out.tell() < file.size:
                before = out.tell()
                try:
                    await self._more(found, file, out, state)
                    reason = "the connection ended early"
                except Away as error:
                    reason = str(error)
                fruitless = 0 if out.tell() > before else fruitless + 1
                if fruitless >= TRIES:
                    raise DownloadFailed(
                        f"{file.name} of {found.id} did not arrive: {reason}. What did is kept: start again, and it goes on."
                    )
                await asyncio.sleep(0.1 * 2**fruitless if fruitless else 0)
            out.flush()
            os.fsync(out.fileno())
        if await asyncio.to_thread(_digest, part, file) != file.digest:
            part.unlink()
            raise DownloadFailed(
                f"{file.name} of {found.id} is not what {hub_cache.hub_endpoint()} publishes: its hash differs, so it was "
                "deleted. Start again; if it happens again, the mirror or the network changes files."
            )
        part.replace(whole)

    async def _more(self, found: HubRepository, file: RemoteFile, out: Any, state: DownloadProgress | None) -> None:
        """Append as many bytes as one connection delivers. Raises Away."""
        import aiohttp

        start = out.tell()
        async with self._get(found.id, file_address(found, file.name), start) as reply:
            if start and reply.status != 206:  # a server that cannot continue from a byte
                _count(state, -start)
                _emptied(out)
                if reply.status == 416:
                    return
            try:
                async for chunk in reply.content.iter_chunked(CHUNK):
                    if out.tell() + len(chunk) > file.size:
                        _emptied(out)
                        raise DownloadFailed(
                            f"{file.name} of {found.id} is longer than {hub_cache.hub_endpoint()} publishes."
                        )
                    out.write(chunk)
                    out.flush()  # so that a kill loses nothing that was counted
                    _count(state, len(chunk))
            except (aiohttp.ClientError, TimeoutError) as error:
                raise Away(f"the connection broke ({type(error).__name__})") from error


@contextlib.contextmanager
def _alone(repository: str) -> Iterator[None]:
    """Ensures that no two programs write one partial file. Raises DownloadFailed while another program downloads the
    model."""
    from filelock import FileLock, Timeout

    place = hub_cache.repository_folder(repository)
    place.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(place / hub_cache.LOCK, timeout=0):
            yield
    except Timeout:
        raise DownloadFailed(
            f"{repository} is being downloaded by another program here. Wait until it is done."
        ) from None


async def _bounded(reply: Any) -> bytes:
    content = b""
    async for chunk in reply.content.iter_chunked(CHUNK):
        content += chunk
        if len(content) > ANSWER_LIMIT:
            raise DownloadFailed(
                f"{hub_cache.hub_endpoint()} answered with a listing of more than {size_text(ANSWER_LIMIT)}."
            )
    return content


def _digest(path: Path, file: RemoteFile) -> str:
    """SHA-256, or git's SHA-1 for small files that the hub keeps in git."""
    with path.open("rb") as stream:
        if len(file.digest) == 64:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        digest = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
        return hashlib.file_digest(stream, lambda: digest).hexdigest()
