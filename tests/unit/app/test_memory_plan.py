"""A round's memory, told before it is needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from sapo_backends.base import LoadRequest
from sapo_backends.checkpoints import locate
from sapo_backends.common import hardware, round_memory
from sapo_backends.common.round_memory import BY_KERNELS, DELTA_RULE, ModelSize, RoundShape
from sapo_backends.errors import OutOfMemory
from sapo_backends.measure import probe
from sapo_backends.measure.machine_limits import CardMemory
from sapo_backends.measure.precision import model_size
from sapo_desktop.services.machine import memory_plan
from sapo_desktop.settings import flags
from sapo_swarm.config import RunConfig

HALF_BILLION = ModelSize(494_000_000, 8_800_000, 24, 896, 4864, 128, 151_936)
SHAPES = st.builds(RoundShape, st.integers(1, 256), st.integers(2, 64), st.integers(1, 4096), st.integers(1, 4096))
TORCH = RunConfig(trainer="torch", precision="float32", threads=2, device="cpu")


def replace_config(config: RunConfig, **changes: object) -> RunConfig:
    changed = msgspec.structs.replace(config, **changes)
    flags.check_config(changed)
    return changed


def needed(shape: RoundShape) -> int:
    return round_memory.bytes_of_round(HALF_BILLION, shape, compute_bytes=2)


@given(SHAPES)
def test_a_larger_round_never_needs_less(shape: RoundShape) -> None:
    """But for an update that falls into more and smaller micro-batches: twice the groups are twice all of it."""
    assert needed(replace(shape, groups=2 * shape.groups)) >= needed(shape)
    for name in ("groups", "group_size", "prompt", "new_tokens"):
        larger = replace(shape, **{name: 2 * getattr(shape, name)})
        assert round_memory.bytes_to_generate(HALF_BILLION, larger) >= round_memory.bytes_to_generate(
            HALF_BILLION, shape
        )


@given(SHAPES, st.integers(0, 64 << 30))
def test_a_smaller_round_that_is_offered_fits(shape: RoundShape, available: int) -> None:
    """Or there is none because even the smallest does not."""
    offered = round_memory.smaller_round(needed, shape, available)
    if offered is None:
        assert (
            needed(RoundShape(1, min(4, shape.group_size), shape.prompt, min(32, shape.new_tokens))) > 0.9 * available
        )
    else:
        assert needed(offered) <= 0.9 * available


def test_long_answers_need_no_more_than_the_rows_that_are_generated_at_once() -> None:
    """64 completions of 4,096 tokens would need 6.1 GiB of keys and values; the plan has room for 2."""
    short, long = (
        round_memory.bytes_to_generate(HALF_BILLION, RoundShape(8, 8, 64, tokens)) for tokens in (1400, 4096)
    )
    assert long == pytest.approx(short, rel=0.1)
    assert long < 2.8 * 2**30


def test_what_transformers_generates_at_once_is_bounded_too() -> None:
    """64 completions of 1,024 tokens of a Pythia-1.4B: 15 GiB of keys and values, of which 13 rows' are held at a time."""
    pythia = ModelSize(1_414_647_808, 8_000_000, 24, 2048, 8192, 2048, 50_304, tied=False)
    planned = round_memory.bytes_to_generate_by_transformers(pythia, RoundShape(8, 8, 256, 1024), 2)
    assert 2 * 2**30 < planned < 2.7 * 2**30
    one = round_memory.bytes_to_generate_by_transformers(pythia, RoundShape(1, 1, 256, 1024), 2)
    assert one == pytest.approx(2 * 24 * 2048 * 2 * 1280, rel=0.05)


def test_a_micro_batch_of_transformers_is_smaller_where_its_layers_keep_more() -> None:
    """Experts do. Of layers with a state only one keeps more than what goes in, so a Qwen3.5-0.8B, which used 7.4 GiB when
    all did, needs no more than a plain model of its size."""
    plain = ModelSize(752_000_000, 8_000_000, 24, 1024, 3584, 512, 248_320, heads=8)
    linear = replace(plain, recurrent=DELTA_RULE * 2048, by_kernels=BY_KERNELS * 2048, state=18 * 2048 * 128)
    experts = replace(plain, layers=48, experts=8, intermediate=768)
    tokens = partial(round_memory.fallback_micro_batch, kernels=False)
    assert tokens(plain, 2) == tokens(linear, 2) == round_memory.FALLBACK_MICRO_BATCH
    assert tokens(experts, 4) < tokens(experts, 2) < 1024
    shape = RoundShape(2, 8, 64, 96)
    needed = [
        round_memory.bytes_of_round(size, shape, compute_bytes=2, fallback=True) for size in (plain, linear, experts)
    ]
    assert needed[1] < needed[0] < needed[2] < 6 << 30
    states = [
        round_memory.bytes_to_generate_by_transformers(replace(linear, state=state), shape, 2)
        for state in (0, linear.state)
    ]
    assert states[1] - states[0] == 16 * 4 * 18 * 2048 * 128


def test_a_base_in_four_bits_needs_what_its_embeddings_and_codes_need() -> None:
    """Of half a billion weights 136 million are embeddings; the others take 0.5625 bytes instead of 2."""
    dense, four = (round_memory.bytes_to_load(HALF_BILLION, compute_bytes=2, four_bit=flag) for flag in (False, True))
    assert dense - four == pytest.approx(1.4375 * 358e6 - 2 * 2 * 4864 * 896, rel=0.05)
    shape = RoundShape(8, 8, 64, 96)
    planned = replace_config(TORCH, precision="4bit")
    assert (
        memory_plan.plan_round_memory(planned, 1 << 40, HALF_BILLION).needed
        < memory_plan.plan_round_memory(TORCH, 1 << 40, HALF_BILLION).needed
    )  # type: ignore[union-attr]
    assert round_memory.bytes_of_round(HALF_BILLION, shape, compute_bytes=2, four_bit=True) < 2.6 * 2**30


@pytest.mark.parametrize(("precision", "kind"), [("4bit-float32", "float32"), ("bfloat16", "bfloat16")])
def test_a_precision_says_what_is_computed_in(precision: str, kind: str) -> None:
    assert hardware.computes_in(precision) == kind
    assert hardware.computes_in("4bit") == hardware.computes_in("auto")


def test_the_bundled_models_are_sized_without_loading_them() -> None:
    """Every parameter is counted, from the headers of the weight files."""
    size, method = model_size(locate.resolve_model("starter-1m"), LoadRequest())
    assert (size.parameters, size.trainable, method) == (1_055_360, 1_055_360, "full")
    assert (size.layers, size.hidden, size.key_value, size.vocabulary) == (5, 128, 64, 1024)
    assert size.multiplied == size.parameters  # tied: the embedding is the output layer too


def test_an_adapter_is_counted_as_torch_lays_it_out() -> None:
    pytest.importorskip("torch", reason="the torch engine is not installed")
    from sapo_backends.checkpoints.spec import decoder_spec
    from sapo_backends.torch_backend.decoder import lora_layout

    folder = locate.resolve_model("starter-1m")
    size, method = model_size(folder, LoadRequest(method="lora", lora_rank=4))
    spec = decoder_spec(json.loads((folder / "config.json").read_text()))
    assert method == "lora"
    assert size.trainable == lora_layout(spec, 4).size


def test_an_architecture_of_others_is_estimated_from_its_config(tmp_path: Path) -> None:
    config = {"architectures": ["GPT2LMHeadModel"], "n_embd": 8, "n_layer": 3, "n_head": 2, "vocab_size": 10}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"a": np.zeros((10, 8), np.float32)}, tmp_path / "model.safetensors")
    size, _ = model_size(tmp_path, LoadRequest())
    assert (size.parameters, size.layers, size.hidden, size.intermediate, size.key_value) == (80, 3, 8, 32, 8)


def test_a_run_that_does_not_fit_is_refused_with_settings_that_do() -> None:
    """The flags in the message, typed as they stand, make the run fit."""
    config, available = replace_config(TORCH, local_groups=64, group_size=16, max_new_tokens=512), 1 << 30
    with pytest.raises(OutOfMemory, match=r"B is free\. This fits: --local-groups") as refused:
        memory_plan.require_round_memory(config, available)
    typed = str(refused.value).partition("This fits: ")[2].split()
    changes = {
        name.removeprefix("--").replace("-", "_"): int(n) for name, n in zip(typed[::2], typed[1::2], strict=True)
    }
    memory_plan.require_round_memory(replace_config(config, **changes), available)


def test_others_share_of_a_batch_shrinks_with_it() -> None:
    config = replace_config(TORCH, local_groups=32, external_groups=32, group_size=16, max_new_tokens=256)
    found = memory_plan.plan_round_memory(config, 1 << 30)
    assert found is not None
    assert "--local-groups" in found.suggestion
    assert "--external-groups" in found.suggestion


def test_four_bits_are_tried_before_answers_are_shortened_and_only_where_they_are_not_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """24 layers of half a billion weights, an adapter trained, answers of 1,024 tokens, on a processor fast in bfloat16."""
    monkeypatch.setattr(
        hardware, "detect_hardware", lambda: hardware.Hardware(2, 4 << 30, 4 << 30, "avx512_bf16", "Linux")
    )
    config = replace_config(TORCH, precision="auto", max_new_tokens=1024)

    def suggested(available: float, fallback: bool = False, **changes: object) -> str:
        found = memory_plan.plan_round_memory(
            replace_config(config, **changes), int(available * 2**30), HALF_BILLION, fallback=fallback
        )
        assert found is not None
        return found.suggestion

    kept = suggested(3.0)
    assert kept.endswith("--precision 4bit")
    assert "max-new-tokens" not in kept
    assert suggested(4.1, precision="float32").endswith("--precision 4bit-float32")
    assert "max-new-tokens" in suggested(1.9)
    assert "precision" not in suggested(1.9, precision="4bit")
    assert "precision" not in suggested(4.0, fallback=True)
    assert suggested(0.5, precision="4bit") == suggested(0.5) == "Choose a smaller model."


def test_a_large_vocabularys_tokenizer_is_planned() -> None:
    """400 bytes a token beside what the round of so many logits needs."""
    few, many = (replace(HALF_BILLION, vocabulary=tokens) for tokens in (1_000, 262_144))
    found = [memory_plan.plan_round_memory(TORCH, 64 << 30, size) for size in (few, many)]
    told = [plan.needed for plan in found if plan is not None]
    rounds = [
        round_memory.bytes_of_round(size, plan.shape, compute_bytes=4)
        for size, plan in zip((few, many), found, strict=True)
        if plan is not None
    ]
    assert (told[1] - told[0]) - (rounds[1] - rounds[0]) == pytest.approx(104e6, rel=0.02)


def test_where_nothing_helps_a_smaller_model_is_suggested() -> None:
    with pytest.raises(OutOfMemory, match="Choose a smaller model"):
        memory_plan.require_round_memory(TORCH, 100 << 20)


def test_the_default_run_fits_into_two_gigabytes() -> None:
    memory_plan.require_round_memory(TORCH, 2 << 30)


def test_the_test_engine_is_not_planned() -> None:
    """It needs nothing."""
    assert memory_plan.plan_round_memory(RunConfig(trainer="fake")) is None


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Callable[[CardMemory | None], None]:
    """Says what the GPU of this computer has free."""

    def has(found: CardMemory | None) -> None:
        memory_plan._card.cache_clear()
        monkeypatch.setattr(memory_plan, "has_nvidia", lambda: True)
        monkeypatch.setattr(probe, "card_memory_in_child", lambda _device: found)

    return has


def test_a_run_on_a_gpu_is_planned_with_what_the_gpu_has_free(card: Callable[[CardMemory | None], None]) -> None:
    """However much the computer has, and in the type that the GPU computes in."""
    config = RunConfig(trainer="torch", device="cuda:0")
    card(CardMemory(3 << 30, 8 << 30, 2))
    found = memory_plan.plan_round_memory(config, 1 << 20, HALF_BILLION)
    assert found is not None
    assert found.available == 3 << 30
    card(CardMemory(3 << 30, 8 << 30, 4))
    older = memory_plan.plan_round_memory(config, 1 << 20, HALF_BILLION)
    assert older is not None
    assert older.needed > 1.5 * found.needed
    with pytest.raises(OutOfMemory, match=r"3\.22 GB is free"):
        memory_plan.require_round_memory(config, 1 << 40, HALF_BILLION)


def test_long_answers_on_a_gpu_need_a_third_of_its_memory_for_keys_and_values() -> None:
    """64 completions of 8,192 tokens would need 6.1 GiB in bfloat16."""
    shape = RoundShape(8, 8, 64, 8192)
    small, large = (
        round_memory.bytes_to_generate(HALF_BILLION, shape, kv_bytes=2, kv_budget=round_memory.kv_budget_of(card))
        for card in (3 << 30, 6 << 30)
    )
    assert large - small == pytest.approx(1.25 * 2**30)


def test_where_the_gpu_does_not_answer_only_what_may_run_on_the_processor_is_planned(
    card: Callable[[CardMemory | None], None],
) -> None:
    card(None)
    assert memory_plan.plan_round_memory(RunConfig(trainer="torch", device="cuda:0"), 1 << 30, HALF_BILLION) is None
    found = memory_plan.plan_round_memory(RunConfig(trainer="torch", device="auto"), 1 << 30, HALF_BILLION)
    assert found is not None
    assert found.available == 1 << 30


def test_a_model_that_is_not_here_yet_is_not_planned() -> None:
    assert memory_plan.plan_round_memory(replace_config(TORCH, model="nobody/no-such-model")) is None


@pytest.mark.parametrize(
    ("shape", "budget", "parts"),
    [
        (RoundShape(1, 4, 64, 1024), 1400, [1]),  # another half would fit
        (RoundShape(2, 8, 64, 96), 1400, [8, 5]),
        (RoundShape(2, 8, 64, 96), 9000, [8, 8]),
        (RoundShape(2, 8, 64, 96), 832, [8]),
        (RoundShape(2, 8, 64, 96), 100, [1]),  # one at least
    ],
)
def test_a_micro_batch_holds_whole_completions(shape: RoundShape, budget: int, parts: list[int]) -> None:
    assert shape.micro_batch(budget) == parts


def test_mlx_on_a_processor_is_planned_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever type torch would compute in there: a processor with bfloat16 units changes nothing."""
    config = RunConfig(model="starter", trainer="mlx", device="cpu")

    def needed(unit: str) -> int:
        monkeypatch.setattr(hardware, "matrix_unit", lambda: unit)
        found = memory_plan.plan_round_memory(config)
        assert found is not None
        return found.needed

    assert needed("avx2") == needed("avx512_bf16")
