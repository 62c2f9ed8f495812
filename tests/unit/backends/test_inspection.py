"""Model files of strangers: what takes gigabytes, time or the process ends in one sentence, in a child."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz.model_files import JSON_FILES, WEIGHTS, model_copy, mutate
from tests.support.gguf_files import TINY, gguf_bytes, placed

from sapo_backends.base import LoadRequest
from sapo_backends.checkpoints import gguf_view, inspection
from sapo_backends.checkpoints.hub_cache import cache_folder
from sapo_backends.checkpoints.locate import resolve_local_model, validate_model_folder
from sapo_backends.checkpoints.spec import decoder_spec
from sapo_backends.checkpoints.tokenizer import HfTokenizer, read_json
from sapo_backends.errors import BackendError, ModelNotFound
from sapo_backends.measure.precision import model_size


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the small starter with a tokenizer that is not known, and an empty cache."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "home"))
    inspection._inspected.cache_clear()
    inspection._GOOD.clear()
    return model_copy(tmp_path / "model")


def change(file: Path, **entries: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **entries}), encoding="utf-8")


BAD_TOKENIZERS: dict[str, dict[str, Any]] = {
    "a pattern that never ends": {
        "normalizer": {"type": "Replace", "pattern": {"Regex": "(a|aa)+$b"}, "content": "x"},
    },
    "a panic": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAAAAAAAAAA"}},
    "texts that double": {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}] * 4,
        },
    },
}


@pytest.mark.parametrize("entries", BAD_TOKENIZERS.values(), ids=BAD_TOKENIZERS)
def test_a_tokenizer_bomb_ends_in_the_child_and_in_one_sentence(
    folder: Path, entries: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    change(folder / "tokenizer.json", **entries)
    with pytest.raises(ModelNotFound, match=r"cannot be read safely: .* or choose another\.$") as refused:
        validate_model_folder(folder)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600
    assert capfd.readouterr() == ("", "")


def test_a_good_model_is_inspected_once_whatever_folder_and_process_it_is_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is remembered is what the files hold: a changed template is inspected again."""
    started = []
    run = inspection._run_child
    monkeypatch.setattr(inspection, "_run_child", lambda path: (started.append(path), run(path)))
    for _ in range(2):
        assert validate_model_folder(folder) == folder
        inspection._inspected.cache_clear()
        inspection._GOOD.clear()  # as in another process
    assert started == [folder]
    change(folder / "tokenizer_config.json", chat_template="{{ messages[0].content }}")
    validate_model_folder(folder)
    assert started == [folder, folder]


def test_the_bundled_models_start_no_child(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(inspection, "_run_child", lambda _path: pytest.fail("a child was started"))
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer_config.json").write_bytes(
        (
            Path(inspection.__file__).parents[3] / "assets/sapo_assets/models/starter-1m/tokenizer_config.json"
        ).read_bytes()
    )
    assert validate_model_folder(folder) == folder


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", -1),
        ("vocab_size", 1e30),
        ("hidden_size", float("nan")),
        ("num_attention_heads", 10**40),
        ("layer_types", ["full_attention"] * 100_000),
    ],
)
def test_a_number_beyond_any_models_is_refused_before_anything_is_made_of_it(
    folder: Path, name: str, value: object
) -> None:
    """1e9 layers took 8 GB before the plan."""
    change(folder / "config.json", **{name: value})
    for read in (validate_model_folder, lambda path: decoder_spec(read_json(path / "config.json"))):
        with pytest.raises(ModelNotFound, match=r"config\.json (says|holds) .* again\."):
            read(folder)


def test_a_json_file_larger_than_any_of_a_model_is_not_read(folder: Path) -> None:
    with (folder / "generation_config.json").open("wb") as file:
        file.truncate(10**9)
    with pytest.raises(ModelNotFound, match="at most 16 MB are read"):
        read_json(folder / "generation_config.json")


@pytest.mark.parametrize("name", [*JSON_FILES, WEIGHTS])
def test_any_changed_field_is_a_model_or_a_sentence(folder: Path, tmp_path: Path, name: str) -> None:
    """A part of tests/fuzz/model_files.py with a fixed seed, without the command line."""
    rng = random.Random(name)
    original = (folder / name).read_bytes()
    for _ in range(25):
        (folder / name).write_bytes(original)
        mutate(folder, name, rng)
        with contextlib.suppress(BackendError):
            model_size(folder, LoadRequest(model=str(folder)))
        with contextlib.suppress(BackendError):
            tokenizer = HfTokenizer(folder)
            tokenizer.decode(tokenizer.encode_chat([{"role": "user", "content": "Hello, 12 + 5?"}]))


@pytest.mark.parametrize(
    ("values", "tensors", "sentence"),
    [
        ({"qwen2.block_count": 10**9}, (("token_embd.weight", (256, 3)),), "block_count is 1000000000"),
        ({}, (("token_embd.weight", (256, 3)), ("token_embd.weight", (256, 3))), "two tensors 'token_embd.weight'"),
        ({"general.alignment": 0}, (("token_embd.weight", (256, 3)),), "alignment is impossible"),
    ],
)
def test_a_damaged_gguf_file_is_refused_by_the_child_in_its_own_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    values: dict[str, object],
    tensors: tuple[tuple[str, tuple[int, ...]], ...],
    sentence: str,
) -> None:
    """This process reads no header of it, and no folder of a file that was refused stays in the cache."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(gguf_view, "read_header", lambda *_a, **_k: pytest.fail("the header was read in this process"))
    file = placed(tmp_path / "bad.gguf", gguf_bytes({**TINY, **values}, tensors))
    with pytest.raises(ModelNotFound, match=sentence) as refused:
        resolve_local_model(str(file))
    assert str(file) in str(refused.value)
    assert not list((cache_folder() / "gguf-bases").iterdir())


def test_whoever_waits_for_a_gguf_file_may_stop_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the progress raises comes out, and nothing stays behind."""

    class Stopped(Exception):
        pass

    def stop(_fraction: float, _phrase: str) -> None:
        raise Stopped

    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "home"))
    with pytest.raises(Stopped):
        resolve_local_model(str(placed(tmp_path / "model.gguf")), stop)
    assert not list((cache_folder() / "gguf-bases").iterdir())
