"""Models of other programs: found where those keep them, called as people call them, and nothing in their folders is trusted."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.gguf_files import TINY, gguf_bytes, of_family, placed, pulled

from sapo_backends.checkpoints import hub_cache, local_models, locate
from sapo_backends.checkpoints.gguf_header import HEADER_LIMIT, read_header
from sapo_backends.checkpoints.local_models import each_once, find_local_models, is_gguf, is_named, path_of
from sapo_backends.errors import ModelNotFound

LIBRARY = "registry.ollama.ai/library"
PROJECTOR = "application/vnd.ollama.image.projector"
PART = "big-00001-of-00003.gguf"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's folder without any model."""
    for name in ("OLLAMA_MODELS", "LLAMA_CACHE", "XDG_CACHE_HOME", "HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    return tmp_path


def names(*places: str) -> list[str]:
    return sorted(one.base for one in find_local_models(places=places or tuple(local_models.TITLES)).models)


def test_an_empty_computer_has_no_models_and_says_nothing() -> None:
    seen = find_local_models()
    assert (seen.models, seen.notes, seen.left_out) == ([], [], 0)


def test_ollama_models_have_the_names_that_people_know(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of the library without host and namespace, others with them; OLLAMA_MODELS is looked at, too."""
    root = home / ".ollama" / "models"
    blob = pulled(root, f"{LIBRARY}/qwen2.5-coder/0.5b")
    pulled(root, f"{LIBRARY}/llama3.2/latest", of_family("llama"))
    pulled(root, "registry.ollama.ai/ada/tuned/v1", of_family("qwen3"))
    pulled(root, "hf.co/bartowski/SmolLM2-GGUF/Q4_K_M", of_family("smollm3"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "disk"))
    pulled(tmp_path / "disk", f"{LIBRARY}/gemma3/270m", of_family("gemma3"))
    assert names() == [
        "ollama:ada/tuned:v1",
        "ollama:gemma3:270m",
        "ollama:hf.co/bartowski/SmolLM2-GGUF:Q4_K_M",
        "ollama:llama3.2:latest",
        "ollama:qwen2.5-coder:0.5b",
    ]
    for written in ("qwen2.5-coder:0.5b", "ollama:qwen2.5-coder:0.5b"):
        assert is_named(written)
        assert path_of(written) == blob
        assert is_gguf(blob)
    assert path_of("ollama:llama3.2") == path_of("llama3.2:latest")


def test_a_name_that_ollama_does_not_have_is_a_sentence_with_what_is_near(home: Path) -> None:
    with pytest.raises(
        ModelNotFound, match=r"Ollama has no model 'qwen:1b' on this computer. Ollama has no models here"
    ):
        path_of("qwen:1b")
    pulled(home / ".ollama" / "models", f"{LIBRARY}/qwen2.5-coder/0.5b")
    with pytest.raises(ModelNotFound, match=r"Did you mean 'qwen2.5-coder:0.5b'"):
        locate.resolve_local_model("qwen2.5-codr:0.5b")
    assert not is_named("starter")
    assert not is_named("owner/name")
    assert not is_named("C:")
    (home / "here:1").mkdir()
    assert not is_named(str(home / "here:1")), "a folder of that name goes first"
    assert not is_named("sapo://host:7471/#t=1")


@pytest.mark.parametrize(
    "digest", ["sha256:../../../../etc/passwd", "../escape", "sha256:" + "g" * 64, "sha256:" + "a" * 63, ""]
)
def test_a_digest_that_is_none_leads_nowhere(home: Path, digest: str) -> None:
    root = home / ".ollama" / "models"
    pulled(root, f"{LIBRARY}/good/latest")
    layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": digest, "size": 1}]
    placed(root / "manifests" / LIBRARY / "bad" / "latest", json.dumps({"layers": layers}).encode())
    seen = find_local_models()
    assert [one.name for one in seen.models] == ["good:latest"]
    assert seen.left_out == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"x": ' + b"[" * 100_000,
        b"\xff\xfe",
        b'{"layers": 7}',
        b'{"layers": []}' + b" " * (1 << 20),
        b'{"layers": [{"mediaType": 1, "digest": 2}]}',
    ],
)
def test_a_damaged_manifest_is_named_and_passed_over(home: Path, content: bytes) -> None:
    root = home / ".ollama" / "models"
    pulled(root, f"{LIBRARY}/good/latest")
    (bad := root / "manifests" / LIBRARY / "bad" / "latest").parent.mkdir()
    bad.write_bytes(content)
    seen = find_local_models()
    assert [one.name for one in seen.models] == ["good:latest"]
    assert seen.notes == ["Ollama: the manifest of bad:latest cannot be read; it was passed over."]


def test_a_manifest_of_a_gigabyte_is_not_read(home: Path) -> None:
    """It would take a second and a gigabyte of memory."""
    path = placed(home / ".ollama" / "models" / "manifests" / LIBRARY / "huge" / "latest")
    os.truncate(path, 1 << 30)
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))\n"
        "from sapo_backends.checkpoints.local_models import find_local_models; print(find_local_models().notes)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "the manifest of huge:latest cannot be read" in done.stdout


def test_a_model_whose_blob_is_missing_or_that_is_an_adapter_says_so(home: Path) -> None:
    root = home / ".ollama" / "models"
    pulled(root, f"{LIBRARY}/gone/latest", of_family("llama")).unlink()
    pulled(root, f"{LIBRARY}/tuned/latest", layers=[("application/vnd.ollama.image.adapter", f"sha256:{'1' * 64}")])
    pulled(root, f"{LIBRARY}/sees/latest", of_family("qwen3"), layers=[(PROJECTOR, f"sha256:{'2' * 64}")])
    reasons = {one.name: one.blocked for one in find_local_models().models}
    assert reasons == {
        "gone:latest": "its file is missing; pull it again with Ollama",
        "tuned:latest": "it is another model with an adapter; choose that model",
        "sees:latest": "",
    }
    with pytest.raises(ModelNotFound, match="gone:latest cannot be used: its file is missing"):
        path_of("gone:latest")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes in folders")
def test_a_pipe_in_the_place_of_a_file_is_not_opened(home: Path) -> None:
    """Opening it would wait for ever."""
    root = home / ".ollama" / "models"
    blob = pulled(root, f"{LIBRARY}/pipe/latest")
    blob.unlink()
    os.mkfifo(blob)
    (folder := home / ".lmstudio" / "models" / "a" / "b").mkdir(parents=True)
    os.mkfifo(folder / "model.gguf")
    os.mkfifo(home / ".lmstudio" / "settings.json")
    assert [(one.name, bool(one.blocked)) for one in find_local_models().models] == [("pipe:latest", True)]
    assert not is_gguf(blob)


def test_lm_studio_models_are_files_and_parts_of_one_are_together(home: Path) -> None:
    folder = home / ".lmstudio" / "models" / "ada"
    placed(folder / "Smol-GGUF" / "Smol-Q4_K_M.gguf")
    placed(folder / "Smol-GGUF" / "Smol-Q8_0.gguf", of_family("llama"))
    placed(folder / "Smol-GGUF" / "mmproj-Smol-f16.gguf")
    placed(folder / "Smol-GGUF" / "downloading_Smol-F16.gguf.part")
    for part in range(1, 4):
        placed(folder / "Big-GGUF" / f"big-0000{part}-of-00003.gguf")
    placed(folder / "Half-GGUF" / "half-00002-of-00002.gguf")
    seen = find_local_models()
    assert {(one.name, one.parts, one.blocked) for one in seen.models} == {
        ("Smol-Q4_K_M", 1, ""),
        ("Smol-Q8_0", 1, ""),
        ("big", 3, ""),
        ("half", 2, "part 1 of 2 is missing"),
    }
    assert seen.left_out == 1
    big = next(one for one in seen.models if one.name == "big")
    assert (big.path.name, big.bytes) == (PART, 3 * len(gguf_bytes()))


def test_files_that_are_called_alike_are_told_apart_by_their_folders(home: Path) -> None:
    first = placed(home / ".lmstudio" / "models" / "ada" / "One" / "model.gguf")
    placed(home / ".lmstudio" / "models" / "bob" / "Two" / "model.gguf", of_family("llama"))
    with pytest.raises(ModelNotFound, match=r"has 2 models called 'model'. Give the file"):
        path_of("lmstudio:model")
    assert path_of("lmstudio:One/model") == path_of("lmstudio:ada/One/model") == first


@pytest.mark.parametrize("settings", [".lmstudio", ".cache/lm-studio", "elsewhere"])
def test_the_folder_of_lm_studios_settings_is_looked_at(home: Path, tmp_path: Path, settings: str) -> None:
    placed(tmp_path / "disk" / "ada" / "Smol" / "smol.gguf")
    placed(
        home / settings / "settings.json", json.dumps({"downloadsFolder": str(tmp_path / "disk"), "x": [1]}).encode()
    )
    (home / ".lmstudio-home-pointer").write_text(f"{home / 'elsewhere'}\n")
    assert names() == ["lmstudio:smol"]


@pytest.mark.parametrize("folder", ["7", '"relative"', '"/a\\u0000b"', "{"])
def test_settings_that_name_no_folder_are_passed_over(home: Path, folder: str) -> None:
    placed(home / ".lmstudio" / "settings.json", f'{{"downloadsFolder": {folder}}}'.encode())
    placed(home / ".cache" / "lm-studio" / "models" / "ada" / "Smol" / "smol.gguf")
    assert names() == ["lmstudio:smol"]


def test_links_that_lead_back_end_and_a_file_of_two_places_is_one_model(home: Path) -> None:
    blob = pulled(home / ".ollama" / "models", f"{LIBRARY}/qwen2.5/0.5b")
    pulled(home / ".ollama" / "models", f"{LIBRARY}/qwen2.5/latest")
    folder = home / ".lmstudio" / "models" / "ada" / "Qwen"
    folder.mkdir(parents=True)
    (folder / "qwen.gguf").symlink_to(blob)
    (folder / "up").symlink_to(home / ".lmstudio" / "models")
    (folder / "self").symlink_to(folder / "self")
    (folder / "nowhere.gguf").symlink_to(folder / "gone")
    seen = find_local_models()
    assert len(seen.models) == 3
    (only,) = each_once(seen.models)
    assert {only.base, *only.also} == {"ollama:qwen2.5:0.5b", "ollama:qwen2.5:latest", "lmstudio:qwen"}


def test_a_folder_that_may_not_be_read_is_a_note_and_the_others_are_listed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a person whose Ollama runs as a service of another account sees it."""
    placed(home / ".lmstudio" / "models" / "ada" / "Smol" / "smol.gguf")
    locked, scandir = home / ".ollama" / "models" / "manifests", os.scandir
    locked.mkdir(parents=True)

    def refusing(path: Path) -> object:
        if Path(path) == locked:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    seen = find_local_models()
    assert [one.base for one in seen.models] == ["lmstudio:smol"]
    assert seen.notes == [f"Ollama: {locked} cannot be read (Permission denied)."]


def test_a_folder_with_too_many_entries_is_left_and_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_models, "ENTRIES", 20)
    for number in range(40):
        placed(home / ".lmstudio" / "models" / "ada" / "many" / f"{number:02}.gguf")
    placed(home / ".ollama" / "models" / "manifests" / "note.txt")
    pulled(home / ".ollama" / "models", f"{LIBRARY}/qwen/latest")
    seen = find_local_models()
    assert len(seen.models) <= 21
    assert "ollama:qwen:latest" in [one.base for one in seen.models], "another place's entries count apart"
    assert seen.notes == ["LM Studio: more than 20 entries; the rest was not looked at."]


def test_a_deep_tree_is_not_followed_to_its_end(home: Path) -> None:
    deep = home / ".lmstudio" / "models"
    for _ in range(60):
        deep = deep / "d"
    placed(deep / "far.gguf")
    placed(home / ".lmstudio" / "models" / "ada" / "Smol" / "near.gguf")
    assert names() == ["lmstudio:near"]


def test_a_search_ends_at_its_deadline(home: Path) -> None:
    placed(home / ".lmstudio" / "models" / "ada" / "Smol" / "smol.gguf")
    seen = find_local_models(deadline=time.monotonic() - 1)
    assert seen.models == []
    assert seen.notes == ["LM Studio: looking took too long; not everything was looked at."]


def test_llama_cpp_names_lose_the_repository_that_it_puts_before_them(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_CACHE", str(home / "cache"))
    placed(home / "cache" / "ggml-org_gemma-3-270m-GGUF_gemma-3-270m-Q8_0.gguf")
    placed(home / "cache" / "manifest=ggml-org=gemma-3-270m-GGUF=latest.json", b"{}")
    placed(home / "cache" / "by-hand.gguf", of_family("llama"))
    assert names() == ["llamacpp:by-hand", "llamacpp:gemma-3-270m-Q8_0"]


@pytest.mark.parametrize(
    ("platform", "place"),
    [("linux", ".cache/llama.cpp"), ("darwin", "Library/Caches/llama.cpp"), ("win32", "AppData/Local/llama.cpp")],
)
def test_llama_cpp_has_another_folder_on_each_system(
    home: Path, monkeypatch: pytest.MonkeyPatch, platform: str, place: str
) -> None:
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setattr(local_models.sys, "platform", platform)  # type: ignore[attr-defined]
    assert local_models.llama_cpp_folders() == [home / place]


def test_the_hubs_cache_has_gguf_files_and_whole_folders(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder by its id, as `--base` took it before; one without weights is no model."""
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "hub"))
    whole = hub_cache.repository_folder("owner/whole") / "snapshots" / "c0"
    whole.parent.mkdir(parents=True)
    os.symlink(locate.bundled_model_folder("starter-1m"), whole)
    placed(hub_cache.repository_folder("owner/whole") / "refs" / "main", b"c0")
    placed(hub_cache.repository_folder("owner/small-GGUF") / "snapshots" / "c1" / "small-Q4_K_M.gguf")
    placed(hub_cache.repository_folder("owner/began") / "snapshots" / "c2" / "config.json", b"{}")
    placed(home / "hub" / "datasets--owner--table" / "snapshots" / "c3" / "x.gguf")
    assert names() == ["hub:small-Q4_K_M", "owner/whole"]


# The header


def test_a_header_tells_what_a_file_is_without_its_weights(tmp_path: Path) -> None:
    found = read_header(
        placed(tmp_path / "a", gguf_bytes(tensors=[("token_embd.weight", (256, 3)), ("output.weight", (256, 3))]))
    )
    assert (found.architecture, found.quantisation, found.parameters) == ("qwen2", "Q4_K_M", 1536)
    assert found.of_family("block_count") == 2
    assert found.lengths["tokenizer.ggml.tokens"] == 3
    assert found.is_whole
    unnamed = read_header(placed(tmp_path / "b", gguf_bytes({"general.architecture": "llama"})))
    assert unnamed.quantisation == "Q4_K"


def test_a_file_that_was_cut_off_is_not_whole(tmp_path: Path) -> None:
    path = placed(tmp_path / "a.gguf")
    os.truncate(path, path.stat().st_size - 40)
    assert not read_header(path).is_whole


def test_a_number_of_each_layer_counts_as_its_largest(tmp_path: Path) -> None:
    path = placed(tmp_path / "a.gguf", gguf_bytes({**TINY, "qwen2.feed_forward_length": [64, 256, 128]}))
    assert read_header(path).of_family("feed_forward_length") == 256


HUGE = 1 << 62


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "does not begin with GGUF"),
        (b"PK\x03\x04" + bytes(64), "does not begin with GGUF"),
        (b"GGUF", "cut off"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version is 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 1, 1), "version is"),
        (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0), "claims"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), "claims"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, HUGE), "a name in it has"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**64 - 1), "a name in it has"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 99), "unknown type 99"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, HUGE), "arrays have more than"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 4, HUGE), "arrays have more than"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 9, 1), "an array holds arrays"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 1, 0, 1, b"t", 77), "77 axes"),
        (b"GGUF" + struct.pack("<IQQQ1sIQQIQ", 3, 1, 0, 1, b"t", 2, HUGE, 4, 0, 0), "impossible shape"),
        (b"GGUF" + struct.pack("<IQQQ1sIQQIQ", 3, 1, 0, 1, b"t", 2, 0, 4, 0, 0), "impossible shape"),
        (gguf_bytes({"general.alignment": 0}), "alignment"),
    ],
)
def test_a_hostile_header_is_one_sentence_before_anything_is_made_of_its_lengths(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelNotFound, match=said) as refused:
        read_header(path)
    assert str(refused.value).startswith(f"{path} is no whole GGUF file")


def test_no_more_than_a_header_is_read(tmp_path: Path) -> None:
    """A text of a gigabyte in a file that has it."""
    entry = struct.pack("<IQQQ1sIQ", 3, 0, 1, 1, b"k", 8, 1 << 30)
    path = placed(tmp_path / "long.gguf", b"GGUF" + entry)
    os.truncate(path, (1 << 30) + 4096)
    with pytest.raises(ModelNotFound, match="cut off"):
        read_header(path)
    assert HEADER_LIMIT < 1 << 27
