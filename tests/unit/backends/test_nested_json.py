"""JSON of a model folder or a checkpoint that is nested too deep for Python's reader ends as any other damage does."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from sapo_backends.checkpoints import safetensors_numpy
from sapo_backends.checkpoints.chat_template import ChatTemplate
from sapo_backends.checkpoints.hub_cache import missing_weight_files
from sapo_backends.checkpoints.tokenizer import read_json
from sapo_backends.checkpoints.write_folder import read_state
from sapo_backends.errors import ModelNotFound, TemplateRefused

DEEP = "[" * 200_000


def test_a_settings_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(DEEP)
    with pytest.raises(ModelNotFound, match=r"config\.json cannot be read"):
        read_json(tmp_path / "config.json")


def test_an_index_of_shards_promises_nothing(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(DEEP)
    assert missing_weight_files(tmp_path, ["weights.safetensors"]) == []


@pytest.mark.parametrize("header", [DEEP, "1234"])
def test_weights_with_such_a_header_are_damaged(tmp_path: Path, header: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode())
    with pytest.raises(ModelNotFound, match="is damaged: its header is n"):
        safetensors_numpy.count_weights(tmp_path)


def test_the_state_of_a_checkpoint_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(DEEP)
    with pytest.raises(ValueError, match="nested too deep"):
        read_state(tmp_path, {})


@pytest.mark.parametrize(
    "template", ["{{ " + "(" * 5000 + ")" * 5000 + " }}", "{% for m in messages %}" * 30 + "{% endfor %}" * 30]
)
def test_a_template_is_refused(template: str) -> None:
    with pytest.raises(TemplateRefused, match="cannot be read"):
        ChatTemplate(template)


def test_a_template_that_calls_itself_without_end_is_refused() -> None:
    with pytest.raises(TemplateRefused, match="failed"):
        ChatTemplate("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").render([{"role": "user", "content": "hi"}])
