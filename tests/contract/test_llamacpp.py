"""What only the llama.cpp engine does: GGUF files, quantised weights, the live adapter, the pair with a trainer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from sapo_backends import registry
from sapo_backends.base import Completion, Engine, LoadRequest, PolicyUpdate, Sampling, TokenSequence, TrainSample
from sapo_backends.errors import BackendError, BackendUnavailable, CheckpointCorrupt

pytest.importorskip("llama_cpp", reason="the llamacpp engine is not installed")
torch = pytest.importorskip("torch", reason="the torch engine is not installed")

from sapo_backends.checkpoints.gguf_write import cached_gguf, write_gguf  # noqa: E402
from sapo_backends.checkpoints.locate import resolve_model  # noqa: E402
from sapo_backends.checkpoints.tokenizer import HfTokenizer  # noqa: E402
from sapo_backends.composite import CompositeEngine  # noqa: E402
from sapo_backends.llamacpp_backend import engine as live_adapter  # noqa: E402
from sapo_backends.llamacpp_backend import native  # noqa: E402
from sapo_backends.llamacpp_backend.loading import require_working  # noqa: E402

Folder = Callable[[str], Path]
PROMPTS = [list(range(5, 17)), list(range(20, 51)), [7] * 20]
SEQUENCES = [TokenSequence(tuple(p), tuple(range(60, 70))) for p in PROMPTS]

Chat = list[dict[str, str]]


def open_engine(name: str, model: Path | str, **options: Any) -> Engine:
    """An engine on one thread with a small adapter; float32 unless said otherwise."""
    chosen = {
        "method": "lora",
        "precision": "float32",
        "device": "cpu",
        "threads": 1,
        "lora_rank": 4,
        "lora_alpha": 8.0,
    }
    return registry.get_backend(name)().load(LoadRequest(model=str(model), **{**chosen, **options}))


def random_adapter(engine: Engine, seed: int, scale: float = 0.1) -> dict[str, Any]:
    """An adapter like the engine's with random values in A and B."""
    rng = np.random.default_rng(seed)
    return {n: rng.normal(0, scale, np.shape(t)).astype(np.float32) for n, t in engine.adapter().items()}


def gap(left: Engine, right: Engine) -> float:
    """Mean absolute difference of log-probabilities on fixed sequences."""
    a, b = (np.concatenate([np.array(row) for row in e.logprobs(SEQUENCES)]) for e in (left, right))
    return float(np.abs(a - b).mean())


@pytest.mark.parametrize(
    ("precision", "bound"), [("float32", 1e-5), ("float16", 3e-3), ("bfloat16", 0.03), ("q8_0", 0.05), ("q4_0", 0.6)]
)
def test_log_probs_of_every_precision_are_as_near_as_its_bits_allow(
    model_folder: Folder, precision: str, bound: float
) -> None:
    """Fewer bits, larger gap; each within its own bound, none exact that should not be."""
    exact = open_engine("torch", model_folder("qwen2"), method="none")
    engine = open_engine("llamacpp", model_folder("qwen2"), method="none", precision=precision)
    assert bound / 1000 < gap(engine, exact) < bound
    engine.close()


@pytest.mark.parametrize("model", ["starter-1m", "starter"])
def test_greedy_tokens_of_the_starters_equal_those_of_torch_on_50_prompts(
    model: str, held_out_chats: list[Chat]
) -> None:
    """Engine equality on trained models and real questions of different lengths."""
    greedy, answers = Sampling(temperature=0.0, max_new_tokens=24), []
    for name in ("torch", "llamacpp"):
        engine = open_engine(name, model, method="none")
        prompts = [engine.tokenizer.encode_chat(chat) for chat in held_out_chats]
        answers.append([group[0].tokens for group in engine.generate(prompts, 1, greedy, seed=0)])
        engine.close()
    assert answers[0] == answers[1]


def test_another_program_splits_text_of_the_exported_starter_as_we_do(tmp_path: Path) -> None:
    """llama.cpp's own tokenizer over the exported file gives our ids, control tokens apart."""
    folder = resolve_model("starter-1m")
    write_gguf(folder, tmp_path / "starter.gguf", "F16")
    model, tokenizer = native.GgufModel(tmp_path / "starter.gguf"), HfTokenizer(folder)
    llama = native.llama
    for text in ("What is 12 + 345?", "a  b\n\nc\tü 日本 <answer>7</answer>", "   ", "don't 3.14 x_1"):
        raw, room = text.encode(), (llama.llama_token * 256)()
        vocabulary: Any = llama.llama_model_get_vocab(model.pointer)
        count = llama.llama_tokenize(vocabulary, raw, len(raw), room, 256, False, False)
        assert list(room[:count]) == tokenizer.encode_text(text)
    model.close()


def test_a_cached_file_is_made_once_and_again_when_the_model_changes(model_folder: Folder, tmp_path: Path) -> None:
    """The name carries a fingerprint of the folder; nothing half-written stays behind."""
    folder = model_folder("qwen2")
    first = cached_gguf(folder, "F16", tmp_path)
    written = first.stat().st_mtime_ns
    assert cached_gguf(folder, "F16", tmp_path) == first
    assert first.stat().st_mtime_ns == written
    weights = next(folder.glob("*.safetensors"))
    os.utime(weights, ns=(weights.stat().st_atime_ns, weights.stat().st_mtime_ns + 10**9))
    assert cached_gguf(folder, "F16", tmp_path) != first
    assert {file.suffix for file in tmp_path.iterdir()} == {".gguf"}


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_an_adapter_means_the_same_as_in_torch(model_folder: Folder, architecture: str) -> None:
    """PEFT tensors through GGUF give torch's log-probabilities, also for Llama's rotated rows."""
    engines = [open_engine(name, model_folder(architecture)) for name in ("torch", "llamacpp")]
    assert gap(*engines) < 1e-5, "before, both compute the base model"
    adapter = random_adapter(engines[0], seed=1)
    base = engines[0].logprobs(SEQUENCES)
    for engine in engines:
        engine.set_adapter(adapter, 8.0)
    assert gap(*engines) < 1e-4
    assert np.abs(np.subtract(engines[0].logprobs(SEQUENCES), base)).mean() > 0.1
    engines[1].close()


def test_fifty_adapter_swaps_take_effect_and_keep_memory_flat(model_folder: Folder) -> None:
    """Each swap changes what is sampled, the same adapter twice samples the same, and memory does not grow."""
    engine, greedy = open_engine("llamacpp", model_folder("qwen2")), Sampling(temperature=1.0, max_new_tokens=6)
    sampled: dict[int, list[list[Completion]]] = {}
    process, took = psutil.Process(), []
    for round_ in range(50):
        seed = round_ % 10
        began = time.perf_counter()
        engine.set_adapter(random_adapter(engine, seed), 8.0)
        took.append(time.perf_counter() - began)
        now = engine.generate(PROMPTS, 2, greedy, seed=3)
        assert sampled.setdefault(seed, now) == now
        if round_ == 9:
            held = process.memory_info().rss
    assert len({str(groups) for groups in sampled.values()}) == 10
    assert process.memory_info().rss - held < 20 * 2**20
    assert np.median(took) < 1.0
    engine.close()


def test_an_adapter_that_takes_no_effect_is_noticed(model_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """If llama.cpp went on computing as before, the swap would say so instead of training on stale completions."""
    engine = open_engine("llamacpp", model_folder("qwen2"))
    empty = {name: np.zeros(np.shape(t), np.float32) for name, t in engine.adapter().items()}
    written = live_adapter.write_adapter
    monkeypatch.setattr(live_adapter, "write_adapter", lambda spec, _, alpha, file: written(spec, empty, alpha, file))
    with pytest.raises(BackendError, match="computes as before"):
        engine.set_adapter(random_adapter(engine, 0), 8.0)
    engine.close()


def test_an_adapter_of_another_model_is_refused(model_folder: Folder) -> None:
    """A missing target or another width leaves the engine as it was."""
    engine = open_engine("llamacpp", model_folder("qwen2"))
    before = engine.logprobs(SEQUENCES)
    adapter = random_adapter(engine, 0)
    name = next(iter(adapter))
    with pytest.raises(BackendError, match="does not fit"):
        engine.set_adapter({n: t for n, t in adapter.items() if n != name}, 8.0)
    with pytest.raises(BackendError, match="does not fit"):
        engine.set_adapter({**adapter, name: adapter[name][:, :-1]}, 8.0)
    assert engine.logprobs(SEQUENCES) == before
    engine.close()


def test_a_generator_saves_and_restores_its_adapter_and_does_not_train(model_folder: Folder, tmp_path: Path) -> None:
    """The adapter comes back exactly; a damaged file is refused; update() says what to do."""
    engine = open_engine("llamacpp", model_folder("qwen2"))
    engine.set_adapter(random_adapter(engine, 1), 8.0)
    before = engine.logprobs(SEQUENCES)
    engine.save(tmp_path)
    engine.set_adapter(random_adapter(engine, 2), 4.0)
    engine.restore(tmp_path)
    assert engine.logprobs(SEQUENCES) == before
    (tmp_path / "adapter.safetensors").write_bytes(b"short")
    with pytest.raises(CheckpointCorrupt):
        engine.restore(tmp_path)
    with pytest.raises(BackendUnavailable, match="does not train"):
        engine.update([], PolicyUpdate(1e-3), 0)
    engine.close()


def mismatch(pair: Engine, groups: list[list[Completion]]) -> float:
    """Mean |log-probability under the trainer - under the generator| over the tokens of completions of PROMPTS."""
    pairs = [(tuple(p), c) for p, group in zip(PROMPTS, groups, strict=True) for c in group]
    scored = pair.logprobs([TokenSequence(p, c.tokens) for p, c in pairs])
    return float(
        np.abs(np.concatenate([np.subtract(s, c.logprobs) for s, (_, c) in zip(scored, pairs, strict=True)])).mean()
    )


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_pair_samples_from_what_it_has_just_trained(model_folder: Folder, method: str) -> None:
    """After updates the generator's log-probabilities are the trainer's new ones, by adapter or by merged model."""
    pair = open_engine("llamacpp+torch", model_folder("qwen2"), method=method)
    start = pair.logprobs(SEQUENCES)
    for seed in range(3):
        groups = pair.generate(PROMPTS, 4, Sampling(max_new_tokens=6), seed)
        assert mismatch(pair, groups) < 1e-4
        batch = [
            TrainSample(tuple(p), c.tokens, [1.0, -1.0][i % 2])
            for p, g in zip(PROMPTS, groups, strict=True)
            for i, c in enumerate(g)
        ]
        pair.update(batch, PolicyUpdate(3e-3), seed)
    trained = pair.logprobs(SEQUENCES)
    assert np.abs(np.subtract(trained, start)).mean() > 0.05
    sampled = pair.generate(PROMPTS, 1, Sampling(max_new_tokens=6), 9)
    for prompt, (completion,) in zip(PROMPTS, sampled, strict=True):
        scored = pair.logprobs([TokenSequence(tuple(prompt), completion.tokens)])[0]
        np.testing.assert_allclose(completion.logprobs, scored, atol=1e-4)
    pair.close()


def test_a_pair_that_is_told_its_quantised_generators_log_probs_corrects_for_the_gap(model_folder: Folder) -> None:
    """The update is the trainer's own with the same behaviour."""
    pair = open_engine("llamacpp+torch", model_folder("qwen2"), precision="q8_0", seed=0)
    alone = open_engine("torch", model_folder("qwen2"), precision="auto", seed=0)
    assert isinstance(pair, CompositeEngine)
    groups = pair.generate(PROMPTS, 4, Sampling(max_new_tokens=6), seed=0)
    assert 1e-4 < mismatch(pair, groups) < 0.1
    batch = [
        TrainSample(tuple(p), c.tokens, [1.0, -1.0][i % 2], behaviour_logprobs=c.logprobs)
        for p, g in zip(PROMPTS, groups, strict=True)
        for i, c in enumerate(g)
    ]
    ours, expected = (engine.update(batch, PolicyUpdate(1e-3), 0) for engine in (pair, alone))
    assert ours.loss == pytest.approx(expected.loss, abs=1e-6)
    assert pair.logprobs(SEQUENCES) == alone.logprobs(SEQUENCES)
    pair.close()


def test_a_pair_of_wrong_halves_is_refused_with_the_right_name() -> None:
    """llama.cpp cannot be the trainer."""
    with pytest.raises(BackendUnavailable, match="llamacpp does not train"):
        registry.get_backend("torch+llamacpp")


def test_long_answers_go_in_waves_that_have_room_after_short_ones_went_wider(
    model_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache that short answers left takes many rows at once, but not so many long ones."""
    prompts, sampling = [*PROMPTS, [9] * 8], Sampling(max_new_tokens=100)
    alone = open_engine("llamacpp", model_folder("qwen2"), method="none")
    expected = [[c.tokens for c in group] for group in alone.generate(prompts, 8, sampling, seed=1)]
    alone.close()
    engine = open_engine("llamacpp", model_folder("qwen2"), method="none")
    engine.generate(prompts * 2, 8, Sampling(max_new_tokens=4), seed=0)
    monkeypatch.setattr("sapo_backends.llamacpp_backend.engine.rows_at_once", lambda row_bytes: 10)
    groups = engine.generate(prompts, 8, sampling, seed=1)
    assert [[c.tokens for c in group] for group in groups] == expected
    engine.close()


def test_a_crash_of_the_library_kills_a_child_and_not_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not survive one decode is refused with a remedy; what does is not tried again on that processor."""
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF but nothing else")
    with pytest.raises(BackendUnavailable, match=r"crashes.*--precision float16"):
        require_working(damaged, "Q8_0", "Qwen2ForCausalLM", 1, tmp_path)
    sound = cached_gguf(resolve_model("starter-1m"), "Q8_0", tmp_path)
    require_working(sound, "Q8_0", "Qwen2ForCausalLM", 1, tmp_path)
    require_working(damaged, "Q8_0", "Qwen2ForCausalLM", 1, tmp_path)
    monkeypatch.setattr("sapo_backends.common.hardware.processor_name", lambda: "one with AMX")
    with pytest.raises(BackendUnavailable, match="crashes"):
        require_working(damaged, "Q8_0", "Qwen2ForCausalLM", 1, tmp_path)


def test_llama_cpp_never_takes_a_longrope_s_factors_for_long_texts_here(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """It goes by the context of all rows together. A file for other programs has both."""
    gguf = pytest.importorskip("gguf")
    files = [cached_gguf(model_folder("phi3-longrope"), "F32", tmp_path), tmp_path / "theirs.gguf"]
    write_gguf(model_folder("phi3-longrope"), files[1], "F32")
    found = []
    for file in files:
        factors = {t.name: t.data.tolist() for t in gguf.GGUFReader(file).tensors if t.name.startswith("rope_factors")}
        found.append(factors["rope_factors_short.weight"] == factors["rope_factors_long.weight"])
    assert found == [True, False]
