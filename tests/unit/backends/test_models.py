"""Finding models and engines by name, and saying clearly when there is none."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from sapo_backends import registry
from sapo_backends.base import LoadRequest
from sapo_backends.checkpoints import locate
from sapo_backends.checkpoints.hub_cache import missing_weight_files
from sapo_backends.checkpoints.safetensors_numpy import count_weights, raw_pieces
from sapo_backends.common import hardware, round_memory
from sapo_backends.errors import BackendError, BackendUnavailable, ModelNotFound, OutOfMemory
from sapo_backends.fake import FakeBackend


def test_an_unknown_model_names_the_nearest_bundled_one() -> None:
    """A typing mistake is answered with what was probably meant."""
    with pytest.raises(ModelNotFound, match="'starter'"):
        locate.resolve_model("startr")


def test_a_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    """The message says what is missing."""
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        locate.resolve_model(str(tmp_path))


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    """A .bin file is never read, and the message says why."""
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    with pytest.raises(ModelNotFound, match=r"can run code; convert them: .* save_pretrained\(FOLDER\)"):
        locate.resolve_model(str(tmp_path))


def test_what_is_no_folder_of_a_causal_language_model_is_told_what_to_give(tmp_path: Path) -> None:
    """A cut GGUF file, a folder with nothing but one, and a model that fills in masks."""
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFound, match=r"is no whole GGUF file: its header is cut off\. Download it again"):
        locate.resolve_local_model(str(tmp_path / "x.gguf"))
    (tmp_path / "notes.txt").write_text("GG")
    with pytest.raises(ModelNotFound, match=r"notes\.txt is a file and no model"):
        locate.resolve_local_model(str(tmp_path / "notes.txt"))
    with pytest.raises(
        ModelNotFound, match=r"holds GGUF files and no Hugging Face model\. Give the file itself: .*x\.gguf"
    ):
        locate.resolve_local_model(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_text('{"architectures": ["BertForMaskedLM"]}', encoding="utf-8")
    with pytest.raises(ModelNotFound, match="BertForMaskedLM is no causal language model"):
        locate.resolve_local_model(str(tmp_path))
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen2ForCausalLM"]}', encoding="utf-8")
    assert locate.resolve_local_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    "entry",
    [
        {"model_file": "m.py"},
        {"attn_implementation": "somebody/kernel"},
        {"_attn_implementation": {"": "paged|somebody/kernel@1:f"}},
        {"text_config": [{"experts_implementation": {"text_config": "somebody/kernel"}}]},
    ],
)
def test_a_config_that_has_a_library_run_code_of_the_model_is_refused(entry: dict[str, object], tmp_path: Path) -> None:
    """mlx-lm before 0.32 ran the file, transformers fetches the kernel where `kernels` is installed."""
    (tmp_path / "model.safetensors").write_bytes(b"")
    harmless = {
        "architectures": ["Qwen2ForCausalLM"],
        "attn_implementation": "sdpa",
        "auto_map": {"AutoModel": "a/b--c.D"},
    }
    (tmp_path / "config.json").write_text(json.dumps(harmless), encoding="utf-8")
    assert locate.resolve_local_model(str(tmp_path)) == tmp_path
    (tmp_path / "config.json").write_text(json.dumps(harmless | entry), encoding="utf-8")
    with pytest.raises(ModelNotFound, match=r"(model_file|_implementation)\. This app runs none"):
        locate.resolve_local_model(str(tmp_path))


def test_a_hub_id_without_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Offline and not in the cache: connect once, or use the starter."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFound, match="Connect once"):
        locate.resolve_model("nobody/no-such-model")


def test_an_unknown_engine_lists_what_is_installed() -> None:
    """The nearest name and the installed ones are in the message."""
    with pytest.raises(BackendUnavailable, match=r"'torch'.*Installed here:.*fake"):
        registry.get_backend("torhc")


def test_listing_engines_imports_none_of_them() -> None:
    """Names come from strings; torch, mlx, llama_cpp and transformers stay unimported."""
    script = (
        "import sys; from sapo_backends import registry; registry.known_backends(); registry.installed_backends();"
        "registry.get_backend('fake'); registry.get_backend('torch').check();"
        "heavy = {'torch', 'mlx', 'llama_cpp', 'transformers'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_memory_is_refused_before_it_is_needed() -> None:
    """Sizes and a suggestion are part of the error."""
    with pytest.raises(OutOfMemory, match=r"about 8\.59 GB.*2\.15 GB is free.*smaller") as caught:
        round_memory.require_memory(8 << 30, "Choose a smaller model.", available=2 << 30)
    assert caught.value.needed == 8 << 30
    round_memory.require_memory(1 << 30, "", available=2 << 30)


def test_this_machine_is_described() -> None:
    """Cores and memory are positive and what is free is not more than there is."""
    found = hardware.detect_hardware()
    assert found.cores >= 1
    assert 0 < found.available <= found.memory
    assert found.matrix_unit


def test_the_environment_may_limit_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """OMP_NUM_THREADS wins; nonsense in it does not."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert hardware.default_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert hardware.default_threads() == hardware.physical_cores()


def test_an_unknown_fake_model_is_refused() -> None:
    """fake, fake:slow and fake:<seconds> are all there is."""
    with pytest.raises(BackendError, match="fake:slow"):
        FakeBackend().load(LoadRequest(model="fake:fast"))


def test_files_that_a_container_only_caches_leave_their_memory_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel counts them as the container's and gives them up when somebody asks for memory."""
    for name, text in {
        "memory.max": "8000000",
        "memory.current": "7900000",
        "memory.stat": "anon 1000000\nfile 6500000\nactive_file 500000\ninactive_file 6000000\n",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(hardware, "_CGROUP", tmp_path)
    assert hardware.available_memory() == 6_100_000
    (tmp_path / "memory.stat").unlink()
    assert hardware.available_memory() == 100_000


def test_a_shard_that_is_not_there_is_counted_by_the_names_of_the_others(tmp_path: Path) -> None:
    """Whatever they count from; an index beside whole weights, or a count that nobody could have, promises nothing."""
    assert missing_weight_files(tmp_path, ["m-00002-of-000003.safetensors"]) == [
        f"m-0000{i}-of-000003.safetensors" for i in (1, 3)
    ]
    assert missing_weight_files(tmp_path, ["m-00000-of-00002.safetensors"]) == ["m-00001-of-00002.safetensors"]
    assert missing_weight_files(tmp_path, ["m-00001-of-999999.safetensors"]) == []
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "m-00001-of-00001.safetensors"}}')
    assert missing_weight_files(tmp_path, ["model.safetensors"]) == []
    assert missing_weight_files(tmp_path, ["other.safetensors"]) == ["m-00001-of-00001.safetensors"]


def test_the_same_weights_under_two_names_count_once(tmp_path: Path) -> None:
    """An index beside whole weights leads to the copy in parts, which nothing reads then."""
    folder = tmp_path / "twice"
    shutil.copytree(locate.bundled_model_folder("starter-1m"), folder)
    once = count_weights(folder)
    shutil.copy(folder / "model.safetensors", folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00001.safetensors"}}')
    assert count_weights(locate.validate_model_folder(folder)) == once


@pytest.mark.parametrize("length", [4, 12])
def test_a_tensor_with_other_bytes_than_its_shape_says_is_damage(length: int, tmp_path: Path) -> None:
    """Of fewer, the rest would be what lay in memory before."""
    header = json.dumps({"a.weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, length]}}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(length))
    with pytest.raises(ValueError, match=r"a\.weight has \d+ bytes"):
        list(raw_pieces(file))
    with pytest.raises(ModelNotFound, match="is damaged"):
        count_weights(tmp_path)
