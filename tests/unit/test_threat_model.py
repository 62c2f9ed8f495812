"""The numbers of THREAT_MODEL.md are those of the code: a sentence there is a promise."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from sapo_backends.checkpoints import chat_template, inspection
from sapo_desktop.services.models import endpoint
from sapo_swarm import servers
from sapo_swarm.coordinator.records import FIRST_EXCHANGE_S, invite_share
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.node import evaluation, swarm_exchange
from sapo_swarm.protocol import client, directory, drift, receive, wire
from sapo_swarm.resolve_run import TRIAL_EXTERNAL_GROUPS
from sapo_swarm.scoring import prompts, rubric, scorer, worker
from sapo_swarm.tasks.own import folder, spec
from sapo_swarm.types import MAX_COMPLETION_BYTES

ROOT = Path(__file__).resolve().parents[2]
TEXT = re.sub(r"\s+", " ", (ROOT / "THREAT_MODEL.md").read_text("utf-8"))
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
HOST = msgspec.structs.asdict(CoordinatorSettings())
FACTS = [
    f"with {inspection.MEMORY_BYTES / 1e9:.1f} GB of memory and {inspection.PROCESSOR_S} s of processor time "
    f"(GGUF: {inspection.MAKING_S} s;",
    f"{'one second' if chat_template.SECONDS == 1 else chat_template.SECONDS} of processor time",
    f"numbers of {WORDS[drift.LONG_NUMBER]} digits or more, of which {WORDS[drift.FEWEST_DIGITS]} differ",
    f"{wire.MAX_PACKED // 2**20} MB packed and {folder.MAX_BYTES // 2**20} MB unpacked at most",
    f"{spec.MAX_WORK:,} characters of different patterns are checked in `task.toml`, in the rows and in the schema each",
    f"cut at {rubric.MAX_ANSWER:,} characters; of {rubric.LARGEST // 1024} KB of reply only the last line",
    f"a call takes {WORDS[round(rubric.DEADLINE_S / 60)]} minutes at most",
    f"{MAX_COMPLETION_BYTES // 1024} KB a text",
    f"over {'a second' if worker.DEADLINE_S == 1 else worker.DEADLINE_S} of a processor strikes",
    f"bodies of {endpoint.LARGEST_BODY // 2**20} MB and {WORDS[round(endpoint.BODY_S)]} seconds; {endpoint.WAITING} requests",
    f"{servers.MOST} connections, those without the token give way first",
    f"{servers.MOST} connections, those without the key give way first",
    f"until its parent ends it, {WORDS[round(scorer.JOB_S + scorer.MARGIN_S)]} seconds after a job began (or within "
    f"{'twenty' if scorer.REST_S == 10 else 2 * scorer.REST_S} when",
    f"{WORDS[client.INTERIM_ANSWERS]} interim answers at most",
    f"at most {WORDS[prompts.TAIL]} spaces or closing marks",
    f"of the newest {drift.WINDOW} groups (fewer where these hold over {drift.MOST_TAKEN:,} phrases) "
    f"{WORDS[drift.LIMIT]} may teach a phrase",
    f"a group with more than {drift.MOST_FOREIGN:,} and "
    f"{'twice' if drift.PHRASES_LONGER == 2 else drift.PHRASES_LONGER} the phrases of own texts is refused",
    f"in over {drift.DRIFT:.0%} of its newest {drift.LOCAL_WINDOW} attempts, and in {drift.LEAST_DRIFT} of them".replace(
        "%", " %"
    ),
    f"or {receive.REMEMBERED:,} newer groups",
    f"in its first {drift.BASE_LOCAL} attempts ({drift.LOCAL_A_ROUND} a round) counts as its own; "
    f"in the first {drift.MIN_LOCAL} no phrase is refused",
    f"own texts over {2 * drift.PHRASES_LONGEST:,} characters",
    f"({WORDS[receive.PROBED]} texts a group, at random;",
    f"in {int(drift.CARRIED * drift.WINDOW) + 1} of the newest {drift.WINDOW} groups taken since its start",
    f"A memory holds {drift.REMEMBERED:,} phrases",
    f"written once {'a minute' if swarm_exchange.PHRASES_S == 60 else swarm_exchange.PHRASES_S}",
    f"the first {evaluation.EXCLUDED_PER_TASK} held-out questions of a task, {evaluation.IN_ALL:,} over all",
    f"half of the questions of {WORDS[len(evaluation.FEW)]} tasks that have 90 to 216",
    f"not of {WORDS[len({task.split('/')[0] for task in evaluation.SLOW})]} tasks that are slow to make",
    f"{WORDS[HOST['invite_uses']]} uses unless you say otherwise",
    f"nothing was heard for {HOST['idle_days']:.0f} days",
    f"nodes silent for {HOST['idle_days']:.0f} days go to newcomers",
    f"joined {'an hour' if FIRST_EXCHANGE_S == 3600 else FIRST_EXCHANGE_S} ago and never exchanged",
    f"{directory.MAX_BYTES // 1024} KiB at most",
    f"a trial: {WORDS[TRIAL_EXTERNAL_GROUPS]} external groups a batch",
]


@pytest.mark.parametrize("fact", FACTS)
def test_a_number_of_the_threat_model_is_the_codes(fact: str) -> None:
    assert fact in TEXT


def test_half_of_a_sample_is_for_one_invite() -> None:
    assert "nodes of one invite get half of a sample at most" in TEXT
    assert [invite_share(want) for want in (2, 8, 9)] == [1, 4, 4]


def test_every_attack_names_a_test_or_a_benchmark_that_exists() -> None:
    """A row without one is a claim."""
    page = (ROOT / "docs" / "benchmarks" / "trust.md").read_text("utf-8")
    rows = [row for row in page.split("## ")[0].splitlines() if row.startswith("| ")][1:]
    assert len(rows) > 30
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
