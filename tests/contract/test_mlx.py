"""What only the MLX engine does or may get wrong: rope bases, 4-bit models, its own AdamW, exports."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.contract.conftest import write_model
from tests.support import families

from sapo_backends import registry
from sapo_backends.base import Engine, LoadRequest, PolicyUpdate, Sampling, TokenSequence, TrainSample
from sapo_backends.errors import BackendError, BackendUnavailable

mx = pytest.importorskip("mlx.core", reason="the mlx engine is not installed")
pytest.importorskip("torch", reason="the torch engine is not installed")

from sapo_backends.mlx_backend import device_check, loading, update  # noqa: E402
from sapo_backends.mlx_backend import engine as engine_module  # noqa: E402
from sapo_backends.mlx_backend.model import blocked_logsumexp  # noqa: E402

Folder = Callable[[str], Path]
PROMPTS = [list(range(5, 17)), list(range(20, 51)), [7] * 20]
SEQUENCES = [TokenSequence(tuple(p), tuple(range(60, 70))) for p in PROMPTS]

Chat = list[dict[str, str]]


def open_engine(name: str, model: Path | str, **options: Any) -> Engine:
    """An engine in float32 on the processor with a small adapter."""
    chosen = {
        "method": "full",
        "precision": "float32",
        "device": "cpu",
        "threads": 1,
        "lora_rank": 4,
        "lora_alpha": 8.0,
    }
    return registry.get_backend(name)().load(LoadRequest(model=str(model), **{**chosen, **options}))


def batch() -> list[TrainSample]:
    """Completions of several lengths with advantages of both signs."""
    rng = np.random.default_rng(0)
    advantages = (1.0, -0.8, 0.5, 0.0, 1.2, -1.0)
    return [
        TrainSample(tuple(PROMPTS[i % 3]), tuple(int(t) for t in rng.integers(0, 250, 1 + 3 * i)), advantage)
        for i, advantage in enumerate(advantages)
    ]


def rewritten(source: Path, folder: Path, **changes: Any) -> Path:
    """A copy of a model folder with other settings; None removes one."""
    shutil.copytree(source, folder)
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return folder


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
@pytest.mark.parametrize("place", ["transformers 5", "transformers 4"])
def test_the_rope_base_is_found_wherever_it_is_written(
    model_folder: Folder, tmp_path: Path, architecture: str, place: str
) -> None:
    """mlx_lm alone would assume a default for one of the two and sample wrong tokens."""
    theta, source = 5000.0, model_folder(architecture)
    rope = json.loads((source / "config.json").read_text())["rope_parameters"] | {"rope_theta": theta}
    old = {"rope_theta": theta, "rope_parameters": None, "rope_scaling": rope if architecture == "llama" else None}
    new = {"rope_theta": None, "rope_parameters": rope}
    folder = rewritten(source, tmp_path / "model", **(new if place == "transformers 5" else old))
    scored = [open_engine(name, folder).logprobs(SEQUENCES) for name in ("torch", "mlx")]
    np.testing.assert_allclose(scored[1], scored[0], atol=2e-5)


def test_a_width_whose_root_is_no_bfloat16_is_computed_as_torch_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mlx_lm's Gemma 3 multiplies the embeddings by the root, rounded."""
    monkeypatch.setitem(families.TINY, "gemma3_text", families.TINY["gemma3_text"] | {"hidden_size": 40})
    folder = write_model(tmp_path, "gemma3_text")
    scored = [open_engine(name, folder).logprobs(SEQUENCES) for name in ("torch", "mlx")]
    np.testing.assert_allclose(scored[1], scored[0], atol=2e-5)


def test_a_sum_over_a_large_vocabulary_loses_nothing_to_rounding() -> None:
    """Flat logits, where MLX's own sum of 151,937 terms on a processor is 1e-4 nats too small or more."""
    logits = np.random.default_rng(0).standard_normal((3, 151_937)).astype(np.float32)
    with mx.stream(mx.cpu):
        summed = np.array(blocked_logsumexp(mx.array(logits)))
    np.testing.assert_allclose(summed, np.log(np.exp(logits.astype(np.float64)).sum(-1)), atol=2e-6)


def test_a_real_file_is_computed_as_torch_does(real_model: Path) -> None:
    """Log-probabilities of real text agree to 1e-4 nats."""
    text, scored = (Path(__file__).parents[2] / "README.md").read_text("utf-8")[:200], []
    for name in ("torch", "mlx"):
        engine = open_engine(name, real_model, method="lora")
        ids = engine.tokenizer.encode_text(text)
        scored.append(engine.logprobs([TokenSequence((ids[0],), tuple(ids[1:]))]))
        engine.close()
    np.testing.assert_allclose(scored[1], scored[0], atol=1e-4)


@pytest.mark.parametrize("model", ["starter-1m", "starter"])
def test_greedy_tokens_of_the_starters_equal_those_of_torch(model: str, held_out_chats: list[Chat]) -> None:
    """Engine equality on trained models and real questions of different lengths: 50, and five for the larger model.

    In tens of like length: a batch is as long as its longest prompt.
    """
    greedy, answers = Sampling(temperature=0.0, max_new_tokens=24), []
    for name in ("torch", "mlx"):
        engine = open_engine(name, model, method="none")
        prompts = sorted(map(engine.tokenizer.encode_chat, held_out_chats), key=len)[:: 10 if model == "starter" else 1]
        tens = [prompts[begin : begin + 10] for begin in range(0, len(prompts), 10)]
        answers.append([group[0].tokens for ten in tens for group in engine.generate(ten, 1, greedy, seed=0)])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("method", ["full", "lora"])
def test_several_adamw_steps_equal_those_of_torch(model_folder: Folder, method: str) -> None:
    """Clipping, decay, bias correction, minibatch order and statistics are the same arithmetic."""
    engines = [open_engine(name, model_folder("qwen2"), method=method) for name in ("torch", "mlx")]
    if method == "lora":
        engines[1].set_adapter(engines[0].adapter(), 8.0)
    policy = PolicyUpdate(1e-3, epochs=2, minibatches=2, weight_decay=0.05, max_grad_norm=0.5)
    torch_stats, stats = (engine.update(batch(), policy, seed=3) for engine in engines)
    assert stats.loss == pytest.approx(torch_stats.loss, abs=1e-4)
    assert stats.grad_norm == pytest.approx(torch_stats.grad_norm, rel=1e-2)
    assert stats.entropy == pytest.approx(torch_stats.entropy, abs=1e-3)
    assert stats.ratio_max == pytest.approx(torch_stats.ratio_max, rel=1e-2)
    scored = [np.array(engine.logprobs(SEQUENCES)) for engine in engines]
    moved = np.abs(scored[0] - np.array(open_engine("torch", model_folder("qwen2")).logprobs(SEQUENCES))).mean()
    assert np.abs(scored[1] - scored[0]).mean() < 0.01 * moved


def quantised(source: Path, folder: Path) -> Path:
    """A 4-bit MLX folder, written as mlx_lm.convert writes it."""
    from mlx.utils import tree_flatten
    from mlx_lm.utils import load_model, quantize_model

    with mx.stream(mx.cpu):
        network, config = load_model(source)
        network, config = quantize_model(network, config, 32, 4)
        folder.mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(source / name, folder / name)
        mx.save_safetensors(
            str(folder / "model.safetensors"), dict(tree_flatten(network.parameters())), {"format": "mlx"}
        )
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_4_bit_model_trains_an_adapter_and_exports_whole_weights(model_folder: Folder, tmp_path: Path) -> None:
    """The adapter learns over the frozen 4-bit base, and torch computes the same from the exported folder."""
    folder = quantised(model_folder("qwen2"), tmp_path / "four-bit")
    with pytest.raises(BackendError, match="method lora"):
        open_engine("mlx", folder, method="full")
    engine = open_engine("mlx", folder, method="auto")
    assert engine.info.method == "lora"
    before = np.array(engine.logprobs(SEQUENCES))
    for seed in range(2):
        stats = engine.update(batch(), PolicyUpdate(3e-3), seed)
        assert stats.steps == 1
    after = np.array(engine.logprobs(SEQUENCES))
    assert np.abs(after - before).mean() > 1e-3
    (tmp_path / "whole").mkdir()
    engine.export(tmp_path / "whole")
    np.testing.assert_allclose(open_engine("torch", tmp_path / "whole").logprobs(SEQUENCES), after, atol=1e-3)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_an_exported_model_computes_the_same_in_torch(
    model_folder: Folder, tmp_path: Path, architecture: str, method: str
) -> None:
    """Names, tied heads, the rope base and the merged adapter survive the way through a Hugging Face folder."""
    engine = open_engine("mlx", model_folder(architecture), method=method)
    engine.update(batch(), PolicyUpdate(3e-3), seed=0)
    engine.export(tmp_path)
    scored = open_engine("torch", tmp_path).logprobs(SEQUENCES)
    np.testing.assert_allclose(scored, engine.logprobs(SEQUENCES), atol=1e-4)


def test_what_cannot_be_loaded_is_refused_with_a_remedy(model_folder: Folder) -> None:
    """Unknown devices and precisions, and training without trained tensors."""
    with pytest.raises(BackendUnavailable, match="--device"):
        open_engine("mlx", model_folder("qwen2"), device="cuda")
    with pytest.raises(BackendError, match="float32 or bfloat16"):
        open_engine("mlx", model_folder("qwen2"), precision="int3")
    engine = open_engine("mlx", model_folder("qwen2"), method="none")
    with pytest.raises(BackendUnavailable, match="generate only"):
        engine.update(batch(), PolicyUpdate(1e-3), 0)
    assert engine.adapter() == {}


def test_bfloat16_computes_nearly_the_same(model_folder: Folder) -> None:
    """The compute type of Metal: trained tensors stay float32 and learn in it."""
    exact = open_engine("mlx", model_folder("qwen2"))
    engine = open_engine("mlx", model_folder("qwen2"), precision="bfloat16")
    gap = np.abs(np.subtract(engine.logprobs(SEQUENCES), exact.logprobs(SEQUENCES))).mean()
    assert 1e-4 < gap < 0.1
    stats = engine.update(batch(), PolicyUpdate(1e-4), seed=0)
    assert stats.steps == 1
    groups = engine.generate(PROMPTS, 2, Sampling(max_new_tokens=4), seed=0)
    assert all(1 <= len(c.tokens) <= 4 for group in groups for c in group)


def test_a_small_float32_model_keeps_every_bit_where_the_engine_chooses_to_train_all_of_it(
    model_folder: Folder, tmp_path: Path
) -> None:
    """What is trained is float32 whatever it is computed in: weights that earlier training moved a little stay moved."""
    source = model_folder("qwen2")
    engine = open_engine("mlx", source, method="auto", precision="bfloat16")
    assert engine.info.method == "full"
    engine.export(tmp_path)
    kept, exported = (load_file(folder / "model.safetensors") for folder in (source, tmp_path))
    assert {name: (exported[name] == tensor).all() for name, tensor in kept.items()} == dict.fromkeys(kept, True)


@pytest.mark.parametrize("compute", [mx.float32, mx.bfloat16])
def test_a_device_that_is_met_for_the_first_time_is_checked_once(
    compute: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On the processor, which stands for every GPU."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    device_check.ensure_device_checked(mx.cpu, compute, loading.load_bundled_model)
    device_check.ensure_device_checked(mx.cpu, compute, lambda *_: pytest.fail("it was met before"))


def test_a_device_on_which_mlx_computes_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def wrong(device: Any, compute: Any) -> Any:
        model = loading.load_bundled_model(device, compute)
        if compute == mx.bfloat16:
            monkeypatch.setattr(model, "logits", lambda hidden: type(model).logits(model, hidden) * 1.5)
        return model

    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    for _ in range(2):  # and is not remembered as met
        with pytest.raises(BackendUnavailable, match=r"MLX computes sampling \(off by .*--device cpu"):
            device_check.ensure_device_checked(mx.cpu, mx.bfloat16, wrong)


def test_a_gpu_is_checked_before_a_model_is_loaded_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(device: Any, *_given: Any) -> None:
        raise BackendUnavailable(f"{device} was checked.")

    monkeypatch.setattr(loading, "pick_device", lambda _name: mx.gpu)
    monkeypatch.setattr(loading, "limit_memory", lambda _device: None)
    monkeypatch.setattr(device_check, "ensure_device_checked", check)
    with pytest.raises(BackendUnavailable, match="gpu was checked"):
        open_engine("mlx", "starter-1m")


def test_after_use_share_of_a_half_an_update_is_made_of_twice_as_many_micro_batches(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is tried where memory ran out."""
    engine = open_engine("mlx", model_folder("qwen2"))
    samples = [TrainSample(tuple(range(5, 21)), tuple(range(60 + i, 76 + i)), 1.0 - i % 2 * 2) for i in range(8)]
    monkeypatch.setattr(engine_module, "TRAINING_BUDGET", 128)
    sizes: list[int] = []
    padded = update.pad_micro_batch
    monkeypatch.setattr(
        update,
        "pad_micro_batch",
        lambda pairs, members, *more: sizes.append(len(members)) or padded(pairs, members, *more),
    )
    policy = PolicyUpdate(1e-3)
    engine.update(samples, policy, 0)
    whole = list(sizes)
    engine.use_share(0.5)
    engine.update(samples, policy, 0)
    assert len(sizes) - len(whole) == 2 * len(whole)
    engine.close()


def test_whatever_else_computes_with_mlx_does_so_as_the_engine() -> None:
    """What a machine could do at best is measured by the arithmetic that the engine uses."""
    code = "import os; from sapo_backends.measure.machine_limits import _mlx; _mlx('cpu'); print(os.environ['MLX_ENABLE_TF32'])"
    environment = {name: value for name, value in os.environ.items() if name != "MLX_ENABLE_TF32"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "0\n", done.stderr


@pytest.mark.parametrize(("set_by_the_person", "used"), [(None, "0"), ("1", "1")])
def test_loading_the_mlx_engine_keeps_float32_products_from_tf32_unless_the_person_wants_them(
    set_by_the_person: str | None, used: str
) -> None:
    """A GPU of Apple's M5 would compute them in TF32, and MLX reads the variable once."""
    code = "import os, sys, sapo_backends.mlx_backend as m; print(os.environ['MLX_ENABLE_TF32'], 'mlx' in sys.modules)"
    environment = {name: value for name, value in os.environ.items() if name != "MLX_ENABLE_TF32"}
    if set_by_the_person is not None:
        environment["MLX_ENABLE_TF32"] = set_by_the_person
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [used, "False"]
