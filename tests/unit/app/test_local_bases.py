"""The models on this computer as bases: with their figures, whether they fit, and why not."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.gguf_files import TINY, gguf_bytes, of_family, placed, pulled

from sapo_backends.checkpoints import hub_cache
from sapo_backends.checkpoints import local_models as places
from sapo_backends.common import hardware
from sapo_backends.errors import size_text
from sapo_desktop import settings
from sapo_desktop.commands.models import bases
from sapo_desktop.paths import Home
from sapo_desktop.services import first_run
from sapo_desktop.services.bases import local_models, recommended
from sapo_desktop.services.bases.local_models import scan_local_bases
from sapo_desktop.services.first_questions import BaseGroup, FirstRunAnswers
from sapo_swarm.config import RunConfig

LIBRARY = "registry.ollama.ai/library"
RUN = RunConfig(trainer="torch", device="cpu")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's folder without any model, and no network."""
    for name in ("OLLAMA_MODELS", "LLAMA_CACHE", "XDG_CACHE_HOME", "HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(local_models, "_last", {})
    return tmp_path


@pytest.fixture
def app(home: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    found = Home(*(home / f"app-{name}" for name in ("config", "data", "cache", "logs", "run")))
    found.settings.parent.mkdir()
    for key, value in (("trainer", "torch"), ("device", "cpu")):
        settings.write_setting(found.settings, f"run.{key}", value)
    monkeypatch.setattr(Home, "find", classmethod(lambda _cls: found))
    return found


def lm_studio(home: Path, name: str, content: bytes = b"") -> Path:
    return placed(home / ".lmstudio" / "models" / "ada" / "Model-GGUF" / name, content)


def test_each_model_has_its_size_quantisation_and_fit(home: Path) -> None:
    path = lm_studio(home, "smol-Q4_K_M.gguf")
    (one,) = scan_local_bases(RUN).bases
    assert (one.base, one.quantisation, one.architecture, one.parameters) == (
        "lmstudio:smol-Q4_K_M",
        "Q4_K_M",
        "qwen2",
        768,
    )
    assert one.short == f"fits, {size_text(path.stat().st_size)}, Q4_K_M, LM Studio"


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS would ask whether the terminal may look")
def test_a_download_is_listed_and_what_lies_in_a_folder_below_is_not(home: Path) -> None:
    placed(home / "Downloads" / "smol-Q4_K_M.gguf", b"")
    placed(home / "Downloads" / "archive" / "old.gguf", b"")
    (home / "Downloads" / "bill.pdf").write_bytes(b"%PDF")
    (one,) = scan_local_bases(RUN).bases
    assert one.base == "downloads:smol-Q4_K_M"
    assert places.path_of(one.base) == home / "Downloads" / "smol-Q4_K_M.gguf"


def test_a_large_model_is_tight_or_too_large_by_the_memory_that_is_free(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same plan that refuses a run: tight is what smaller rounds make fit."""
    wide = {"block_count": 24, "embedding_length": 896, "feed_forward_length": 4864}
    values = {**TINY, **{f"qwen2.{key}": value for key, value in wide.items()}}
    path = lm_studio(home, "half-a-billion.gguf", gguf_bytes(values, [("token_embd.weight", (896, 500_000))]))
    os.truncate(path, 400_000_000)
    fits = {}
    for free in (64 << 30, 2600 << 20, 1 << 30):
        monkeypatch.setattr(hardware, "available_memory", lambda free=free: free)
        (one,) = scan_local_bases(RUN, fresh=True).bases
        fits[free >> 20] = one.fit
    assert fits == {64 << 10: "fits", 2600: "tight", 1024: "too large"}


def test_what_cannot_be_trained_has_its_reason_and_comes_last(home: Path) -> None:
    lm_studio(home, "a-new.gguf", of_family("mamba99"))
    lm_studio(home, "a-cut.gguf", gguf_bytes()[:-40])
    lm_studio(home, "a-text.gguf", b"hello")
    lm_studio(home, "a-split-00001-of-00001.gguf")
    for part in (1, 2):
        lm_studio(home, f"b-split-0000{part}-of-00002.gguf")
    lm_studio(home, "z-good.gguf", of_family("llama"))
    found = scan_local_bases(RUN)
    assert {one.model.name: one.reason for one in found.bases} == {
        "a-split": "",
        "z-good": "",
        "a-new": "the architecture mamba99 is not supported",
        "a-cut": "the file is cut off; download it again",
        "a-text": "is no whole GGUF file: it does not begin with GGUF. Download it again",
        "b-split": "it is in 2 parts; llama-gguf-split joins them",
    }
    assert (
        {one.model.name for one in found.trainable}
        == {one.model.name for one in found.bases[:2]}
        == {"a-split", "z-good"}
    )


def test_models_for_vectors_and_pictures_are_counted_only(home: Path) -> None:
    lm_studio(home, "embedder.gguf", of_family("bert"))
    lm_studio(home, "qwen3-embedder.gguf", of_family("qwen3", qwen3__pooling_type=3))
    lm_studio(home, "adapter.gguf", gguf_bytes({**TINY, "general.type": "adapter"}))
    lm_studio(home, "mmproj.gguf")
    lm_studio(home, "good.gguf")
    found = scan_local_bases(RUN)
    assert [one.model.name for one in found.bases] == ["good"]
    assert found.left_out == 4
    assert found.sentences == ("4 more are not listed: made for pictures, vectors or a cloud.",)


def test_names_of_others_do_nothing_to_the_terminal(app: Home, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lm_studio(home, "red\x1b[31m\u202e\n.gguf", of_family("new\x1b]52;c;aGk=\x07"))
    (home / ".lmstudio" / "models" / "\x1b[2J").symlink_to("\x1b[2J")
    bases.list_bases(app, argparse.Namespace(json=False))
    printed = capsys.readouterr().out
    assert "red·[31m·⏎" in printed
    assert "architecture new·]52" in printed
    assert not set(printed) & {"\x1b", "\x07", "\u202e"}


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Ollama's folder lies on a disk that does not answer until the event is set."""
    answers, look_in = threading.Event(), places.LOOKS[places.OLLAMA]

    def waiting(seen: places.LocalModelSearch) -> None:
        answers.wait(60)
        look_in(seen)

    monkeypatch.setitem(places.LOOKS, places.OLLAMA, waiting)
    yield answers
    answers.set()


def test_a_disk_that_does_not_answer_costs_its_own_models_only(home: Path, stuck: threading.Event) -> None:
    """The list comes in time, says that it is not all, and is all once the disk has answered."""
    lm_studio(home, "smol.gguf")
    pulled(home / ".ollama" / "models", f"{LIBRARY}/qwen/latest", of_family("qwen3"))
    began = time.monotonic()
    found = scan_local_bases(RUN, seconds=0.5)
    assert time.monotonic() - began < 5
    assert [one.base for one in found.bases] == ["lmstudio:smol"]
    assert not found.whole
    assert "more may be here. Look again" in found.sentences[-1]
    threads = threading.active_count()
    assert scan_local_bases(RUN, seconds=0.01, fresh=True).bases == found.bases
    assert threading.active_count() == threads, "one look at a time"
    stuck.set()
    whole = scan_local_bases(RUN, seconds=30)
    assert [one.base for one in whole.bases] == ["lmstudio:smol", "ollama:qwen:latest"]
    assert whole.whole


async def test_the_loop_goes_on_while_a_disk_does_not_answer(app: Home, home: Path, stuck: threading.Event) -> None:
    """blockbuster's own rule, and here with a clock: a tick comes through in time."""
    lm_studio(home, "smol.gguf")
    offered = asyncio.create_task(first_run.list_starting_models())
    ticks = 0
    while not offered.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert ticks > 20
    assert (await offered)[0].offers[0].value == "lmstudio:smol"


def test_a_list_of_a_moment_ago_is_the_list_until_it_is_asked_for_anew(home: Path) -> None:
    lm_studio(home, "smol.gguf")
    assert len(scan_local_bases(RUN).bases) == 1
    lm_studio(home, "other.gguf", of_family("llama"))
    assert len(scan_local_bases(RUN).bases) == 1
    assert len(scan_local_bases(RUN, fresh=True).bases) == 2


def test_nothing_is_written_to_the_folders_of_others(app: Home, home: Path) -> None:
    lm_studio(home, "smol.gguf")
    pulled(home / ".ollama" / "models", f"{LIBRARY}/qwen/latest", of_family("qwen3"))

    def state() -> list[tuple[str, int, int]]:
        theirs = [path for name in (".lmstudio", ".ollama") for path in (home / name).rglob("*")]
        return sorted((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in theirs)

    before = state()
    bases.list_bases(app, argparse.Namespace(json=True))
    asyncio.run(first_run.list_starting_models())
    assert state() == before


def test_the_list_of_bases_tells_them_in_lines_and_for_programs(
    app: Home, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blob = pulled(home / ".ollama" / "models", f"{LIBRARY}/qwen2.5-coder/0.5b")
    lm_studio(home, "new.gguf", of_family("mamba99"))
    bases.list_bases(app, argparse.Namespace(json=False))
    lines = capsys.readouterr().out.splitlines()
    heads = [place for place, line in enumerate(lines) if line.startswith(("Bundled:", "On this", "To download:"))]
    shown = lines[heads[1] + 1 : heads[2] - 1]
    assert shown == [
        f"ollama:qwen2.5-coder:0.5b              fits, {size_text(blob.stat().st_size)}, Q4_K_M, Ollama",
        "lmstudio:new                           cannot be trained: the architecture mamba99 is not supported",
    ]
    bases.list_bases(app, argparse.Namespace(json=True))
    rows = {row["base"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    row = rows["ollama:qwen2.5-coder:0.5b"]
    assert (row["place"], row["path"], row["quantisation"], row["fit"]) == ("Ollama", str(blob), "Q4_K_M", "fits")
    assert rows["lmstudio:new"]["reason"] == "the architecture mamba99 is not supported"


def _groups(app: Home) -> tuple[BaseGroup, ...]:
    assert app.settings.exists()
    return asyncio.run(first_run.list_starting_models(True))


def test_without_a_network_what_is_here_is_offered_and_the_rest_is_grey(app: Home, home: Path) -> None:
    lm_studio(home, "smol.gguf")
    here, remote, toys = _groups(app)
    assert [(offer.value, offer.blocked) for offer in here.offers] == [("lmstudio:smol", "")]
    assert remote.title == "To download (not now: HF_HUB_OFFLINE forbids the network)"
    assert all(offer.blocked for offer in remote.offers)
    assert "to see how it works" in toys.offers[0].detail


def test_with_a_network_the_recommended_ones_are_offered_with_their_minutes(
    app: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_cache, "why_away", lambda: "")
    here, remote, _ = _groups(app)
    assert here.notes == (
        "None in the folders of LM Studio, Ollama, llama.cpp, the hub, nor in Downloads. Drop a GGUF file here.",
    )
    by_name = {offer.value: offer for offer in remote.offers}
    assert {base.id for base in recommended.load_recommended_list().bases} == set(by_name)
    assert not any(offer.blocked for offer in remote.offers)
    smol = by_name["HuggingFaceTB/SmolLM2-135M-Instruct"]
    assert smol.detail == "fits, 269 MB, ~2 min to a gain"
    assert "about 2 min to a first visible gain" in smol.more


def test_a_hub_that_does_not_answer_is_away_within_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that takes connections and is silent."""
    import socket

    monkeypatch.delenv("HF_HUB_OFFLINE")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        assert hub_cache.why_away(0.3) in ("the hub does not answer", "the hub cannot be reached")
        assert time.monotonic() - began < 5
    assert hub_cache.why_away(5) == "the hub cannot be reached"


def test_the_settings_keep_an_ollama_model_by_its_name(app: Home, home: Path) -> None:
    """Its file is called by a hash, and another one after the next pull."""
    pulled(home / ".ollama" / "models", f"{LIBRARY}/qwen2.5-coder/0.5b")
    kept = first_run.save_answers(FirstRunAnswers(model="ollama:qwen2.5-coder:0.5b"), app.settings, app.invite)
    assert kept.run.model == "ollama:qwen2.5-coder:0.5b"
    assert msgspec.structs.asdict(settings.load_settings(app.settings).run)["model"] == "ollama:qwen2.5-coder:0.5b"
