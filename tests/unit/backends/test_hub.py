"""Downloads from a stand-in hub: they go on from a byte, end at once, are compared with their hash, and say what is wrong."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.hub_server import COMMIT, Hub, hub_server

from sapo_backends.base import CancelToken
from sapo_backends.checkpoints import hub_cache, hub_download, locate
from sapo_backends.errors import Cancelled, DownloadFailed, ModelNotFound

ID = "owner/tiny"
WEIGHTS = bytes(range(256)) * 1200


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with hub_server() as server:
        server.files[ID] = {
            "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
            "tokenizer.json": b"{}",
            "README.md": b"# words",
            "model.safetensors": WEIGHTS,
            "consolidated.safetensors": WEIGHTS,
            "pytorch_model.bin": b"pickle",
            "onnx/model.safetensors": b"x",
        }
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr(hub_cache, "_sources", [])
        yield server


def part() -> Path | None:
    return next(hub_cache.repository_folder(ID).glob("blobs/*.incomplete"), None)


def cancelled_at(server: Hub, bytes_: int) -> None:
    """Download until the server holds, then cancel."""
    token = CancelToken()
    server.hold = bytes_
    waiting = threading.Thread(target=lambda: (server.held.wait(30), token.cancel()))
    waiting.start()

    def progress(fraction: float, phrase: str) -> None:
        if part() is not None and part().stat().st_size == bytes_:  # type: ignore[union-attr]
            token.raise_if_cancelled()

    with pytest.raises(Cancelled):
        locate.resolve_model(ID, progress)
    waiting.join()
    server.go.set()
    server.hold = 0


def test_only_the_files_that_are_needed_are_fetched_and_other_programs_find_them(hub: Hub) -> None:
    folder = locate.resolve_model(ID)
    assert {f.name for f in folder.iterdir()} == {"config.json", "tokenizer.json", "README.md", "model.safetensors"}
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert not any("consolidated" in path or ".bin" in path for path, _, _ in hub.requests)
    from huggingface_hub import snapshot_download

    found = snapshot_download(
        ID, cache_dir=hub_cache.hub_cache_folder(), local_files_only=True, allow_patterns=["config.json"]
    )
    assert Path(found).resolve() == folder.resolve()


def test_the_card_and_the_texts_of_the_licence_come_with_the_weights_while_they_are_small_and_few(hub: Hub) -> None:
    more = {f"LICENSE-{place}": b"words" for place in range(20)}
    hub.files[ID] |= {"Licence.txt": b"words", "NOTICE": b"x" * (256 << 10) + b"x", "docs/LICENSE": b"words", **more}
    found = {f.name for f in locate.resolve_model(ID).iterdir()} - {
        "config.json",
        "tokenizer.json",
        "model.safetensors",
    }
    assert found == {"README.md", "Licence.txt", *list(more)[:7]}
    hub.files["owner/other"] = hub.files[ID] | {"README.md": b"x" * (256 << 10) + b"x"}
    assert "README.md" not in {f.name for f in locate.resolve_model("owner/other").iterdir()}


def test_the_progress_is_told_in_bytes_and_percent(hub: Hub) -> None:
    told: list[tuple[float, str]] = []
    locate.resolve_model(ID, lambda fraction, phrase: told.append((fraction, phrase)))
    assert told[-1] == (1.0, "downloading owner/tiny: 307 kB of 307 kB, 100 %")


def test_a_cancelled_download_goes_on_from_its_byte(hub: Hub) -> None:
    cancelled_at(hub, 100_000)
    found = part()
    assert found is not None
    assert found.stat().st_size == 100_000
    assert hub_cache.find_snapshot(ID) is None
    locate.resolve_model(ID)
    assert hub.starts("model.safetensors")[-1] == "bytes=100000-"
    assert (locate.resolve_local_model(ID) / "model.safetensors").read_bytes() == WEIGHTS
    assert part() is None


def test_a_silent_server_does_not_delay_a_cancel(hub: Hub) -> None:
    token = CancelToken()
    hub.hold = 1000

    def progress(fraction: float, phrase: str) -> None:
        if hub.held.is_set():
            token.cancel()
        token.raise_if_cancelled()

    with pytest.raises(Cancelled):
        locate.resolve_model(ID, progress)
    assert not hub.go.is_set()


def test_a_connection_that_breaks_is_made_again_at_its_byte(hub: Hub) -> None:
    hub.cut = 150_000
    assert (locate.resolve_model(ID) / "model.safetensors").read_bytes() == WEIGHTS
    spans = [s for p, s, _ in hub.requests if p.startswith("/cdn/")]
    assert spans == ["", "bytes=150000-", "bytes=300000-"]


def test_a_server_without_ranges_begins_anew_and_the_bytes_are_right(hub: Hub) -> None:
    cancelled_at(hub, 50_000)
    hub.ranges = False
    assert (locate.resolve_model(ID) / "model.safetensors").read_bytes() == WEIGHTS


def test_a_part_near_its_end_is_fetched_anew_from_a_server_without_range(hub: Hub) -> None:
    cancelled_at(hub, len(WEIGHTS) - 1000)
    hub.ranges = False
    assert (locate.resolve_model(ID) / "model.safetensors").read_bytes() == WEIGHTS


def test_a_part_that_is_too_long_is_fetched_anew(hub: Hub) -> None:
    cancelled_at(hub, 1000)
    found = part()
    assert found is not None
    found.write_bytes(WEIGHTS + b"x")
    told: list[str] = []
    assert (
        locate.resolve_model(ID, lambda _, phrase: told.append(phrase)) / "model.safetensors"
    ).read_bytes() == WEIGHTS
    assert told[-1] == "downloading owner/tiny: 307 kB of 307 kB, 100 %"


def test_other_bytes_than_published_are_deleted_and_named(hub: Hub) -> None:
    hub.lie = True
    with pytest.raises(DownloadFailed, match=r"model\.safetensors.*hash differs, so it was deleted"):
        locate.resolve_model(ID)
    assert part() is None
    assert hub_cache.find_snapshot(ID) is None
    hub.lie = False
    assert locate.resolve_model(ID)


def test_a_full_disk_is_said_before_the_first_byte(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(hub_download.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(DownloadFailed, match=r"needs \d+ kB more.* 1 kB is free.*HF_HOME"):
        locate.resolve_model(ID)
    assert not any("safetensors" in path for path, _, _ in hub.requests)
    assert hub_cache.all_cached() == []


def test_a_gated_model_says_where_to_agree_and_how_to_log_in(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated[ID] = "right"
    with pytest.raises(ModelNotFound, match=rf"gated.*sapo-desktop login.*{hub.url}/{ID}"):
        locate.resolve_model(ID)
    hub_cache.set_token_source(lambda: "wrong")
    with pytest.raises(ModelNotFound, match="account of your token"):
        locate.resolve_model(ID)
    hub_cache.set_token_source(lambda: "right")
    assert locate.resolve_model(ID)


def test_a_public_model_never_asks_for_the_token(hub: Hub) -> None:
    def opened() -> str:
        raise AssertionError("the keyring was opened")

    hub_cache.set_token_source(opened)
    locate.resolve_model(ID)
    assert {token for _, _, token in hub.requests} == {""}


def test_the_token_does_not_follow_a_redirect_to_another_host(hub: Hub) -> None:
    hub.gated[ID] = "right"
    hub_cache.set_token_source(lambda: "right")
    locate.resolve_model(ID)
    assert any(token for path, _, token in hub.requests if "/resolve/" in path)
    assert [token for path, _, token in hub.requests if path.startswith("/cdn/")] == [""]


def test_an_unknown_id_is_one_sentence(hub: Hub) -> None:
    with pytest.raises(ModelNotFound, match=r"no public model 'owner/none'.*Check the name"):
        locate.resolve_model("owner/none")


def test_a_repository_of_pickles_is_refused_before_a_byte(hub: Hub) -> None:
    hub.files[ID] = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    with pytest.raises(ModelNotFound, match="can run code"):
        locate.resolve_model(ID)


def test_a_repository_without_tokenizer_json_is_refused_before_its_weights(hub: Hub) -> None:
    """Some hold only the file of the slow tokenizer, which is not read."""
    hub.files[ID]["tokenizer.model"] = hub.files[ID].pop("tokenizer.json")
    with pytest.raises(ModelNotFound, match=r"owner/tiny has no tokenizer\.json"):
        locate.resolve_model(ID)
    assert not any("/resolve/" in path for path, _, _ in hub.requests)


def test_a_snapshot_without_tokenizer_json_is_fetched_on(hub: Hub) -> None:
    """As another program leaves it that needed the model alone; its weights stay."""
    (locate.resolve_model(ID) / "tokenizer.json").unlink()
    assert hub_cache.find_snapshot(ID) is None
    assert (locate.resolve_model(ID) / "tokenizer.json").is_file()
    assert len(hub.starts("model.safetensors")) == 2  # the first download, and its redirect


def test_what_is_here_is_used_without_asking_the_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    locate.resolve_model(ID)
    before = len(hub.requests)
    assert locate.resolve_model(ID) == locate.resolve_local_model(ID)
    assert len(hub.requests) == before
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadFailed, match=r"'owner/other'.*On this disk: owner/tiny"):
        locate.resolve_model("owner/other")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadFailed, match="cannot be reached"):
        locate.resolve_model("owner/other")


def test_a_hub_that_goes_away_midway_keeps_what_arrived(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled_at(hub, 70_000)
    monkeypatch.setattr(hub_download, "TRIES", 1)

    hub.cut, hub.dies = 10_000, True
    with pytest.raises(DownloadFailed, match=r"did not arrive.*goes on"):
        locate.resolve_model(ID)
    found = part()
    assert found is not None
    assert found.stat().st_size == 80_000


def test_a_sharded_model_is_complete_with_every_shard(hub: Hub) -> None:
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = json.dumps({"weight_map": {"a": names[0], "b": names[1]}}).encode()
    hub.files[ID] |= {names[0]: b"one", names[1]: b"two", "model.safetensors.index.json": index}
    del hub.files[ID]["model.safetensors"]
    folder = locate.resolve_model(ID)
    (folder / names[1]).unlink()
    assert hub_cache.find_snapshot(ID) is None
    locate.resolve_model(ID)
    assert hub_cache.find_snapshot(ID) == folder


def test_of_the_same_weights_under_two_names_one_set_is_fetched(hub: Hub) -> None:
    """That which transformers reads."""
    hub.files[ID] |= {"model-00001-of-00001.safetensors": WEIGHTS, "model.safetensors.index.json": b"{}"}
    locate.resolve_model(ID)
    assert hub.starts("model.safetensors")
    assert not hub.starts("model-00001-of-00001.safetensors")


@pytest.mark.parametrize("answer", [b"[", b"{}", b'{"sha": "x", "siblings": []}', b"[" * 5000, b"\xff"])
def test_a_hostile_listing_is_a_sentence(hub: Hub, answer: bytes) -> None:
    from sapo_backends.checkpoints.hub_download import parse_listing

    with pytest.raises(ModelNotFound):
        parse_listing(ID, answer)


def test_names_that_leave_the_folder_are_not_files(hub: Hub) -> None:
    from tests.support.hub_server import listing

    from sapo_backends.checkpoints.hub_download import parse_listing

    odd = ["../config.json", "..\\tokenizer.json", "/model.safetensors", "tokenizer\0.json", "tokenizer\x1b[2J.json"]
    odd += ["tokenizer_config.json?x=.json", "tokenizer%2f..json", ".safetensors", "C:model.safetensors"]
    odd.append("x" * 300 + ".safetensors")
    hub.files[ID] |= dict.fromkeys(odd, b"x")
    told = listing(hub, ID)
    found = parse_listing(ID, json.dumps(told).encode())
    assert found.commit == COMMIT
    assert {f.name for f in found.files} == {"config.json", "tokenizer.json", "README.md", "model.safetensors"}
    assert found.license == "apache-2.0"
    assert parse_listing(ID, json.dumps({**told, "tags": ["license:\x1b]52;c;x\x07"]}).encode()).license == ""
