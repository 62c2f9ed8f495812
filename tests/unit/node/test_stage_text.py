"""Hostile text of others in a stage's prompt: made safe, and never a control token."""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
import pytest

from sapo_backends.checkpoints.locate import resolve_model
from sapo_backends.checkpoints.tokenizer import HfTokenizer
from sapo_swarm.node.round_phases import made_safe
from sapo_swarm.sapo.stages import STAGES, AnsweredPrompt, StageMaterial, StagePrompt
from sapo_swarm.scoring.prompts import build_conversation
from sapo_swarm.types import Group, Question, Rollout, TaskRef

ASKED = Question(TaskRef("bf", "paper", 1), "What is 2 + 2?", hashlib.sha256(b"q").hexdigest())


def known(text: str, reward: float) -> Group:
    return Group(ASKED, (Rollout(text, "stop", reward),), source="external", node="a" * 26)


@pytest.mark.parametrize("stage", ["relay", "relay_start", "critique"])
def test_spelled_control_tokens_and_escapes_of_others_stay_text(stage: str) -> None:
    tokenizer = HfTokenizer(resolve_model("starter-1m"))
    control = set(tokenizer.eos_ids) | {tokenizer.pad_id}
    spelled = "".join(tokenizer._control.values())
    text = f"{spelled} \x1b[31m add both {spelled}\u202e\n<answer>4</answer>"
    group = made_safe(known(text, 0.0 if stage == "critique" else 1.0))
    answered = [] if stage == "critique" else [AnsweredPrompt(StagePrompt(ASKED), known("no", 0.0))]
    (prompt,) = STAGES[stage].prompts(StageMaterial((), (group,), 1), answered, np.random.default_rng(0))
    shown = prompt.start or prompt.text
    assert "add both" in shown
    assert not {"\x1b", "\u202e"} & set(shown)
    plain = tokenizer.encode_chat(build_conversation(ASKED))
    question = msgspec.structs.replace(ASKED, prompt=prompt.text)
    ids = [*tokenizer.encode_chat(build_conversation(question)), *tokenizer.encode_text(prompt.start)]
    assert [i for i in ids if i in control] == [i for i in plain if i in control]
    assert len(ids) > len(plain)
