"""What a repository of the hub holds, and which of its files a model needs. Its answers are another's text: checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

import msgspec

from sapo_backends.checkpoints.hub.access import endpoint
from sapo_backends.checkpoints.shards import one_set
from sapo_backends.errors import DownloadFailed, ModelNotFound

ANSWER_LIMIT = 8 << 20
"""Bytes of a listing, at most."""
SETTINGS = (
    "config.json", "generation_config.json", "tokenizer*.json", "chat_template.jinja", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "*.safetensors.index.json",
)  # fmt: skip
CARD, LICENCES = "README.md", ("LICENSE*", "LICENCE*", "NOTICE*")
"""What a model says of itself and of what may be done with it, in upper case."""
CARD_LIMIT, LICENCES_LIMIT = 256 << 10, 8
"""Bytes of such a file, and licence files, at most: others are not fetched."""
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
class Repository:
    """files: what the model needs, its card and licence. license: as the card says, "" = not at all. parameters: 0 = not told."""

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


def address(repository: str) -> str:
    """Where the listing is asked for."""
    return f"{endpoint()}/api/models/{repository}/revision/main?blobs=true"


def file_address(found: Repository, name: str) -> str:
    """Where a file's bytes are."""
    return f"{endpoint()}/{found.id}/resolve/{found.commit}/{name}"


def parsed(repository: str, content: bytes) -> Repository:
    """A listing. Raises ModelNotFound where the repository holds no model that can be read, DownloadFailed where it is none."""
    try:
        answer = msgspec.json.decode(content, type=_Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DownloadFailed(
            f"{endpoint()} answered with something that is no listing of {repository}: {error}."
        ) from error
    listed = [_remote(one) for one in answer.siblings if _NAME.fullmatch(one.rfilename)]
    files = needed([one for one in listed if one is not None])
    if not any(file.name == "config.json" for file in files) or not any(f.name.endswith(".safetensors") for f in files):
        pickled = any(one.rfilename.endswith((".bin", ".pt")) for one in answer.siblings)
        reason = " Its pickled weights are not read, because they can run code." if pickled else ""
        raise ModelNotFound(f"{repository} holds no language model as config.json and *.safetensors.{reason}")
    if not any(file.name == "tokenizer.json" for file in files):
        raise ModelNotFound(
            f"{repository} has no tokenizer.json. Choose a repository of the model with a fast tokenizer."
        )
    if not _DIGEST.fullmatch(answer.sha):
        raise DownloadFailed(f"{endpoint()} names no commit of {repository}.")
    named = (tag.partition(":")[2] for tag in answer.tags if tag.startswith("license:"))
    license_ = next((word for word in named if _WORD.fullmatch(word)), "")
    parameters = answer.safetensors.total if answer.safetensors else 0
    return Repository(repository, answer.sha, bool(answer.gated), license_, max(0, parameters), tuple(files))


def _remote(one: _Sibling) -> RemoteFile | None:
    size, digest = (one.lfs.size, one.lfs.sha256) if one.lfs else (one.size or 0, one.blobId)
    return RemoteFile(one.rfilename, size, digest) if _DIGEST.fullmatch(digest) and size >= 0 else None


def needed(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """The settings, the tokenizer, the card with the licence, and one set of weights, smallest first: not the same weights once
    more under another name."""
    weights = {name for name in one_set({file.name for file in files}) if not name.startswith("consolidated")}
    wanted = [f for f in files if f.name in weights or any(fnmatch(f.name, pattern) for pattern in SETTINGS)]
    small = [f for f in files if f.size <= CARD_LIMIT]
    wanted += [f for f in small if f.name == CARD] + [f for f in small if is_licence(f.name)][:LICENCES_LIMIT]
    return sorted(wanted, key=lambda file: (file.name in weights, file.size, file.name))


def is_licence(name: str) -> bool:
    """Whether a file of that name holds a licence."""
    return any(fnmatch(name.upper(), pattern) for pattern in LICENCES)
