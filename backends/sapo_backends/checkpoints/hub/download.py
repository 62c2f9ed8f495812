"""Downloading a model: what is there already is not fetched again, a part goes on from its byte, every file is compared
with the digest that the hub publishes.

`progress` is called five times a second, bytes or not; when it raises (Cancelled, say) the download ends at once and its
parts stay for the next time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from sapo_backends.base import Progress
from sapo_backends.checkpoints.hub import access, cache
from sapo_backends.checkpoints.hub.repository import (
    ANSWER_LIMIT,
    RemoteFile,
    Repository,
    address,
    file_address,
    parsed,
)
from sapo_backends.checkpoints.hub.sentences import Away, Progressed, offline, refused
from sapo_backends.errors import DownloadFailed, size_text

T = TypeVar("T")
TICK_S = 0.2
CHUNK = 1 << 16
TRIES = 5
"""Connections in a row that bring nothing, before the hub counts as away."""
PATIENCE_S = 20.0
"""A connection that is silent for so long is made again."""
TEMPLATES = ("chat_template.jinja", "tokenizer_config.json")
"""Where a chat template may stand."""
SPARE = 64 << 20
"""Bytes that a download leaves free."""


def look(repository: str) -> Repository:
    """What the hub holds under that id; its config.json is on the disk afterwards, so that it is sure that it may be read, and
    its chat template, by which it is known whether it always reasons.

    Raises ModelNotFound, DownloadFailed (away, or forbidden by HF_HUB_OFFLINE).
    """
    return _run(_with_session(lambda hub: hub.look(repository)))


def config_of(found: Repository) -> Path:
    """The folder with the config.json that look() brought."""
    return cache.of(found.id) / "snapshots" / found.commit


def download(repository: str, progress: Progress | None = None) -> Path:
    """The folder of a model, fetched where it is not in the cache yet. Blocks; not on an event loop.

    Raises ModelNotFound, DownloadFailed, and whatever `progress` raises.
    """
    return _run(_with_session(lambda hub: hub.fetch(repository, progress)))


def missing(found: Repository) -> int:
    """Bytes that a download has still to bring."""
    return sum(file.size - _there(found, file) for file in found.files)


def require_room(found: Repository) -> None:
    """Raise DownloadFailed when the rest does not fit on the disk."""
    place = next(p for p in (cache.folder(), *cache.folder().parents) if p.exists())
    rest, free = missing(found), shutil.disk_usage(place).free
    if rest + SPARE > free:
        raise DownloadFailed(
            f"{found.id} needs {size_text(rest)} more on the disk of {cache.folder()}, {size_text(free)} is free. Free some "
            "space, or set HF_HOME to a folder on another disk."
        )


def _there(found: Repository, file: RemoteFile) -> int:
    """Bytes of a file that are on the disk."""
    if (cache.of(found.id) / "snapshots" / found.commit / file.name).is_file():
        return file.size
    whole = cache.blob(found.id, file.digest)
    for path in (whole, whole.with_name(whole.name + cache.PARTIAL)):
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
            f"{reason}: {cache.folder()}. What was downloaded is kept; free some space and start again: it goes on from there."
        ) from error


async def _with_session(work: Callable[[_Hub], Awaitable[T]]) -> T:
    import aiohttp  # 200 ms: only for a model that is not here

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=PATIENCE_S)
    headers = {"User-Agent": "sapo-desktop", "Accept-Encoding": "identity"}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers, trust_env=True) as session:
        return await work(_Hub(session))


def _count(state: Progressed | None, bytes_: int) -> None:
    if state is not None:
        state.done += bytes_


def _emptied(out: Any) -> None:
    """truncate() alone leaves the position, by which it is told how much is there."""
    out.seek(0)
    out.truncate()


class _Hub:
    """One hub, asked without a name first and with the person's token once it refused."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._headers: dict[str, str] = {}

    async def look(self, repository: str) -> Repository:
        if access.offline():
            raise DownloadFailed(offline(repository, "HF_HUB_OFFLINE forbids the network"))
        try:
            async with self._get(repository, address(repository)) as reply:
                content = await _bounded(reply)
        except Away as error:
            raise DownloadFailed(offline(repository, str(error))) from error
        found = parsed(repository, content)
        config = next(file for file in found.files if file.name == "config.json")
        if config.size > ANSWER_LIMIT:
            raise DownloadFailed(f"{repository} has a config.json of {size_text(config.size)}, which is none.")
        wanted = (config, *(file for file in found.files if file.name in TEMPLATES and file.size <= ANSWER_LIMIT))
        if not all((config_of(found) / file.name).is_file() for file in wanted):
            with _alone(repository):
                await self._files(replace(found, files=wanted), None)
        return found

    @contextlib.asynccontextmanager
    async def _get(self, repository: str, url: str, start: int = 0) -> Any:
        """An answer with 200, 206 or 416. Raises ModelNotFound, DownloadFailed."""
        import aiohttp

        span = {"Range": f"bytes={start}-"} if start else {}
        try:
            reply = await self._session.get(url, headers=self._headers | span)
            if reply.status in (401, 403) and not self._headers and (found := await asyncio.to_thread(access.token)):
                reply.close()
                self._headers = {"Authorization": f"Bearer {found}"}
                reply = await self._session.get(url, headers=self._headers | span)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Away(f"{access.endpoint()} cannot be reached ({type(error).__name__})") from error
        try:
            if reply.status not in (200, 206, 416):
                raise refused(repository, reply.status, reply.headers.get("X-Error-Code", ""), bool(self._headers))
            yield reply
        finally:
            reply.close()

    async def fetch(self, repository: str, progress: Progress | None) -> Path:
        """See download()."""
        found = await self.look(repository)
        require_room(found)
        with _alone(repository):
            return await self._fetch(found, progress)

    async def _fetch(self, found: Repository, progress: Progress | None) -> Path:
        repository = found.id
        there = found.size - missing(found)
        state = Progressed(repository, found.size, there, there, time.monotonic())
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

    async def _files(self, found: Repository, state: Progressed | None) -> Path:
        """Those of the listing. state: None = none of them is weights, so this is no download yet."""
        for file in found.files:
            published = cache.of(found.id) / "snapshots" / found.commit / file.name
            if not published.is_file():
                if not cache.blob(found.id, file.digest).is_file():
                    await self._file(found, file, state)
                published = cache.publish(found.id, found.commit, file.name, file.digest)
        if state is not None:
            cache.refer(found.id, found.commit)
        return published.parent

    async def _file(self, found: Repository, file: RemoteFile, state: Progressed | None) -> None:
        """One file, verified. A part whose bytes are wrong is of no use and goes."""
        whole = cache.blob(found.id, file.digest)
        part = whole.with_name(whole.name + cache.PARTIAL)
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
                f"{file.name} of {found.id} is not what {access.endpoint()} publishes: its hash differs, so it was deleted. "
                "Start again; if it happens again, the mirror or the network changes files."
            )
        part.replace(whole)

    async def _more(self, found: Repository, file: RemoteFile, out: Any, state: Progressed | None) -> None:
        """As many bytes as one connection brings. Raises Away."""
        import aiohttp

        start = out.tell()
        async with self._get(found.id, file_address(found, file.name), start) as reply:
            if start and reply.status != 206:  # a server that does not go on from a byte
                _count(state, -start)
                _emptied(out)
                if reply.status == 416:
                    return
            try:
                async for chunk in reply.content.iter_chunked(CHUNK):
                    if out.tell() + len(chunk) > file.size:
                        _emptied(out)
                        raise DownloadFailed(f"{file.name} of {found.id} is longer than {access.endpoint()} publishes.")
                    out.write(chunk)
                    out.flush()  # a kill loses nothing that is counted
                    _count(state, len(chunk))
            except (aiohttp.ClientError, TimeoutError) as error:
                raise Away(f"the connection broke ({type(error).__name__})") from error


@contextlib.contextmanager
def _alone(repository: str) -> Iterator[None]:
    """Two programs never write one part. Raises DownloadFailed while another one downloads the model."""
    from filelock import FileLock, Timeout

    place = cache.of(repository)
    place.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(place / cache.LOCK, timeout=0):
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
            raise DownloadFailed(f"{access.endpoint()} answered with a listing of more than {size_text(ANSWER_LIMIT)}.")
    return content


def _digest(path: Path, file: RemoteFile) -> str:
    """SHA-256, or git's SHA-1 of small files that the hub keeps in git."""
    with path.open("rb") as stream:
        if len(file.digest) == 64:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        begun = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
        return hashlib.file_digest(stream, lambda: begun).hexdigest()
