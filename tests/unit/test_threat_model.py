"""The numbers of THREAT_MODEL.md are those of the code: a sentence there is a promise."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from sapo_backends.checkpoints import chat_template, inspection
from sapo_swarm import servers
from sapo_swarm.coordinator.records import invite_share
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.protocol import directory, phrase_watch, receive, time_quota
from sapo_swarm.scoring import scorer
from sapo_swarm.tasks.own import folder, spec
from sapo_swarm.types import MAX_COMPLETION_BYTES

ROOT = Path(__file__).resolve().parents[2]
TEXT = re.sub(r"\s+", " ", (ROOT / "THREAT_MODEL.md").read_text("utf-8"))
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
HOST = msgspec.structs.asdict(CoordinatorSettings())
FACTS = [
    f"with {inspection.MEMORY_BYTES / 1e9:.1f} GB and {inspection.PROCESSOR_S} s of processor time "
    f"(GGUF: {inspection.MAKING_S} s)",
    f"a chat template gets {'one second' if chat_template.SECONDS == 1 else chat_template.SECONDS}",
    f"numbers of {WORDS[phrase_watch.LONG_NUMBER]} digits or more",
    f"{folder.MAX_BYTES // 2**20} MB at most",
    f"{spec.MAX_WORK:,} characters of patterns are checked",
    f"{MAX_COMPLETION_BYTES // 1024} KB a text",
    f"{servers.MOST} connections",
    f"use every core for {WORDS[round(scorer.JOB_S + scorer.MARGIN_S)]} seconds",
    f"{WORDS[phrase_watch.LIMIT]} of the newest {phrase_watch.WINDOW} groups may teach a phrase",
    f"older than {receive.REMEMBERED:,} newer ones",
    f"newcomers share {time_quota.NEWCOMERS_RATE:.0%} of the engine".replace("%", " %"),
    f"{WORDS[HOST['invite_uses']]} uses unless you say otherwise",
    f"{directory.MAX_BYTES // 1024} KiB at most",
]


@pytest.mark.parametrize("fact", FACTS)
def test_a_number_of_the_threat_model_is_the_codes(fact: str) -> None:
    assert fact in TEXT


def test_half_of_a_sample_is_for_one_invite() -> None:
    assert "its nodes get half of a sample at most" in TEXT
    assert [invite_share(want) for want in (2, 8, 9)] == [1, 4, 4]


def test_every_attack_names_a_test_or_a_benchmark_that_exists() -> None:
    """A row without one is a claim."""
    page = (ROOT / "docs" / "benchmarks" / "trust.md").read_text("utf-8")
    rows = [row for row in page.split("## ")[0].splitlines() if row.startswith("| ")][1:]
    assert len(rows) > 25
    for row in rows:
        where = row.rstrip("| ").rpartition("| ")[2]
        named = re.findall(
            r"`(?:python )?((?:unit|functional|contract|benchmarks|fuzz|packaging|test_)[\w./]*\.py)", where
        )
        assert named or where.startswith(("`--where", "`test_")), row
        for path in named:
            assert (ROOT / "tests" / path).exists() or (ROOT / path).exists() or list(ROOT.glob(f"tests/**/{path}")), (
                path
            )
