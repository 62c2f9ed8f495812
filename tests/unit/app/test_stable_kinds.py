"""What is written for other programs, or for a later version, is named by words of its own and not by the names of classes."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from sapo_desktop.services.models.exports import job
from sapo_desktop.services.models.pieces import KINDS, ChatChunk, ChatPart, HeldOut, Marks, from_message, to_message
from sapo_swarm import events
from sapo_swarm.tasks.own import spec

PARTS: tuple[ChatPart, ...] = (
    ChatChunk(1, "four", True),
    HeldOut(2, "sums", "2 + 2", "4"),
    Marks((1.0, 0.0), (1, 0), 1, ""),
    Marks((), (0, 0), 0, "the verifier failed"),
)
EVENTS = (
    "base_asked base_trial checkpoint evaluation examples external first_success group log phase round run_started state "
    "swarm vitals"
)
VERIFIERS = (
    "choice environment exact format function json_equal json_schema judged length list number order python_tests regex "
    "rules set sql"
)
JOBS = "answered failed missing progress read write written"


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_a_chat_comes_back_from_its_message(part: ChatPart) -> None:
    assert from_message(to_message(part)) == part


@pytest.mark.parametrize(
    ("message", "part"),
    [
        ({"of": 1, "text": "a", "cut": True}, ChatChunk(1, "a", True)),
    ],
)
def test_what_an_earlier_version_wrote_of_a_chat_is_read(message: dict[str, Any], part: ChatPart) -> None:
    assert from_message(message) == part


def test_the_kinds_of_a_chat_are_these() -> None:
    assert sorted(KINDS.values()) == ["answer", "held_out", "marks"]


@pytest.mark.parametrize(
    ("structs", "kinds"),
    [
        (get_args(events.Event), EVENTS),
        (get_args(spec.Verifier), VERIFIERS),
        ([struct for struct in vars(job).values() if getattr(struct, "__module__", "") == job.__name__], JOBS),
    ],
    ids=["journal", "task.toml", "export"],
)
def test_a_renamed_class_changes_no_stored_kind(structs: list[Any], kinds: str) -> None:
    configs = [struct.__struct_config__ for struct in structs if hasattr(struct, "__struct_config__")]
    tags = sorted(str(config.tag) for config in configs if config.tag is not None)
    assert tags == kinds.split()
    assert not {struct.__name__ for struct in structs if hasattr(struct, "__name__")} & set(tags)
