"""Parts of the torch engine that the contract does not see: the sampler's exactness, packing, sharing out of work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapo_backends.base import Sampling
from sapo_backends.common.update import plan_micro_batches

torch = pytest.importorskip("torch")

from sapo_backends.checkpoints.spec import decoder_spec  # noqa: E402
from sapo_backends.torch_backend import decode_session as session_module  # noqa: E402
from sapo_backends.torch_backend.attention import attend_backward, attend_slabs  # noqa: E402
from sapo_backends.torch_backend.causal_lm import DecoderModel  # noqa: E402
from sapo_backends.torch_backend.decode_session import BUCKET_COST, length_buckets, plan_cache_grid  # noqa: E402
from sapo_backends.torch_backend.decode_step import next_logits  # noqa: E402
from sapo_backends.torch_backend.decoder import decoder_layout  # noqa: E402
from sapo_backends.torch_backend.generation import SMALL_VOCABULARY, draw_uniforms, inverse_cdf, sample_tokens  # noqa: E402
from sapo_backends.torch_backend.packing import pack_micro_batch  # noqa: E402
from sapo_backends.torch_backend.runtime import ShardWorkers, on_cpu, script_function, split_range  # noqa: E402


@settings(deadline=None)
@given(st.integers(1, 700) | st.integers(SMALL_VOCABULARY + 1, SMALL_VOCABULARY + 700), st.integers(0, 2**31))
def test_the_sampler_inverts_the_cumulative_distribution(size: int, seed: int) -> None:
    """For any weights with zeros among them it gives the index that a float64 search gives, and never a zero one."""
    rng = np.random.default_rng(seed)
    weights = (rng.random((3, size)) ** 8 * (rng.random((3, size)) < 0.7)).astype(np.float32)
    weights[:, rng.integers(size)] += 0.1
    uniform = np.array([0.0, rng.random(), 1.0 - 2.0**-53])
    found = inverse_cdf(torch.from_numpy(weights), torch.from_numpy(uniform)).numpy()
    edges = weights.astype(np.float64).cumsum(axis=1)
    for row in range(3):
        assert weights[row, found[row]] > 0
        target = uniform[row] * edges[row, -1]
        assert edges[row, found[row]] >= target - 1e-6 * edges[row, -1]
        assert edges[row, found[row]] - weights[row, found[row]] <= target + 1e-6 * edges[row, -1]


def test_a_large_vocabulary_is_sampled_exactly() -> None:
    """Over 150,000 float32 probabilities the index is the one that exact summation gives, or its neighbour."""
    torch.manual_seed(0)
    probabilities = (torch.randn(1, 150_001) * 3).softmax(-1)
    uniform = torch.rand(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = inverse_cdf(probabilities.expand(400, -1), uniform)
    edges = probabilities[0].double().cumsum(0)
    exact = torch.searchsorted(edges, uniform * edges[-1], right=True)
    assert float((found == exact).double().mean()) > 0.95
    assert float((edges[found] - edges[exact]).abs().max()) < 2e-6


def test_uniforms_of_a_row_do_not_depend_on_the_others() -> None:
    """The same seed gives the same numbers, all in [0, 1)."""
    first = draw_uniforms(4, 6, seed=9)
    assert torch.equal(first, draw_uniforms(4, 6, seed=9))
    assert 0 <= float(first.min()) <= float(first.max()) < 1


PAIRS = st.lists(
    st.tuples(st.sampled_from([(1, 2), (3,), (4, 5, 6)]), st.lists(st.integers(0, 9), max_size=9).map(tuple)),
    max_size=20,
)


@settings(deadline=None)
@given(PAIRS, st.integers(1, 60), st.integers(1, 3), st.booleans())
def test_micro_batches_are_a_partition_within_the_budget(pairs: list, budget: int, workers: int, flat: bool) -> None:
    """Every non-empty completion appears once; a micro-batch exceeds the budget only if it is a single sequence."""
    batches = plan_micro_batches(pairs, budget, workers, flat=flat)
    assert sorted(i for members in batches for i in members) == [i for i, (_, c) in enumerate(pairs) if c]
    for members in batches:
        packed = pack_micro_batch(pairs, members, torch.device("cpu"))
        assert len(members) == 1 or packed.flat.slabs[-1].end <= budget
        assert packed.targets.tolist() == [token for i in members for token in pairs[i][1]]


@pytest.mark.parametrize("size", [1024, 1187 * 3, 997])
def test_sampling_in_pieces_gives_what_sampling_at_once_gives(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vocabularies that blocks of several widths divide, and one that none does."""
    torch.manual_seed(0)
    logits, numbers = torch.randn(9, size), draw_uniforms(9, 1, 5)[:, 0]
    whole = sample_tokens(logits, Sampling(1.0, 1.0, 1), numbers)
    monkeypatch.setattr("sapo_backends.torch_backend.generation.SAMPLED_ELEMENTS", 2 * size)
    for part, at_once in zip(sample_tokens(logits, Sampling(1.0, 1.0, 1), numbers), whole, strict=True):
        assert torch.equal(part, at_once)
    exact = (logits.double().softmax(-1).cumsum(-1) <= numbers[:, None]).sum(-1)
    assert torch.equal(whole[0], exact)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 500)), min_size=1, max_size=8).filter(
        lambda prompts: any(count for count, _ in prompts)
    ),
    st.integers(0, 500),
)
def test_every_row_has_a_place_in_an_entry_of_its_own_prompt(prompts: list[tuple[int, int]], own: int) -> None:
    """Places repeat a row of the same prompt or are none too many, whatever the sizes of the groups, also when a
    prompt's rows have all ended; entries ascend by the length of their prompts."""
    counts, lengths = torch.tensor(prompts).T
    owner = torch.repeat_interleave(torch.arange(len(counts)), counts)
    rows, place_of = plan_cache_grid(owner, lengths, own)
    assert rows.flatten()[place_of].tolist() == list(range(len(owner)))
    assert all(len(set(owner[entry].tolist())) == 1 for entry in rows)
    of_entries = lengths[owner[rows[:, 0]]].tolist()
    assert of_entries == sorted(of_entries)


@given(st.lists(st.integers(1, 600), min_size=1, max_size=64).map(sorted), st.integers(1, 9))
def test_length_classes_cover_all_entries_and_never_cost_more_than_one_class(lengths: list[int], width: int) -> None:
    """Every cut saves more padding than a class costs."""
    ends = length_buckets(lengths, width)
    assert ends == sorted(set(ends))
    assert ends[-1] == len(lengths)
    begins = [0, *ends]
    padded = sum((end - begin) * lengths[end - 1] * width for begin, end in zip(begins, ends, strict=False))
    assert padded + (len(ends) - 1) * BUCKET_COST <= len(lengths) * lengths[-1] * width


def test_one_long_prompt_among_short_ones_is_a_class_of_its_own() -> None:
    assert length_buckets([50, 60, 70, 500], 8) == [3, 4]
    assert length_buckets([50, 60, 70], 8) == [3]


def _tiny(compute: torch.dtype, *, head_norms: bool = False) -> DecoderModel:
    """A random decoder of two layers with grouped heads, and biases where Qwen2 has them."""
    config = {
        "architectures": ["Qwen3ForCausalLM" if head_norms else "Qwen2ForCausalLM"],
        "vocab_size": 70,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    }
    spec = decoder_spec(config)
    layout = decoder_layout(spec)
    generator = torch.Generator().manual_seed(0)
    return DecoderModel(spec, layout, torch.randn(layout.size, generator=generator) * 0.3, compute)


def _decoded(
    model: DecoderModel, prompts: list[list[int]], owner: list[int], keeps: dict[int, list[int]]
) -> list[tuple[list[int], torch.Tensor]]:
    """(tokens, last logits) of each row that is left after greedy steps in which rows are dropped."""
    sampled = [list(prompts[i]) for i in owner]
    with torch.inference_mode():
        session = model.session(prompts, torch.tensor(owner), 6, model.decode_weights(None))
        for step in range(6):
            if step in keeps:
                session.keep(torch.tensor(keeps[step]))
                sampled = [sampled[i] for i in keeps[step]]
            tokens = (session.logits.argmax(-1) + torch.arange(len(sampled))) % 70  # rows of one prompt part ways
            sampled = [[*row, token] for row, token in zip(sampled, tokens.tolist(), strict=True)]
            session.step(tokens)
    return list(zip(sampled, session.logits.float(), strict=True))


@pytest.mark.parametrize("head_norms", [False, True])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scripted", [True, False])
@pytest.mark.parametrize("cuts", [True, False])
def test_decoding_equals_scoring_however_rows_are_dropped(
    kind: torch.dtype, scripted: bool, cuts: bool, head_norms: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uneven groups, dropped rows and prompts, one length class and several, scripted and plain, in both types: the
    last logits are those of the whole sequence computed at once in float32."""
    monkeypatch.setattr(session_module, "on_cpu", on_cpu if scripted else lambda function, tokens: function)
    monkeypatch.setattr("sapo_backends.torch_backend.decode_session.BUCKET_COST", 0 if cuts else BUCKET_COST)
    exact = _tiny(torch.float32, head_norms=head_norms)
    model = _tiny(kind, head_norms=head_norms)
    prompts, owner = [[1, 2, 3], [4, 5, 6, 7, 8], [9]], [0, 0, 0, 0, 1, 1, 1, 2]
    for sampled, logits in _decoded(model, prompts, owner, {2: [0, 2, 3, 4, 7], 4: [1, 2, 3]}):
        assert _distance(logits, exact, sampled) < (1e-4 if kind == torch.float32 else 0.06)


def test_a_step_for_a_tensor_that_is_not_on_the_processor_is_next_logits_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There TorchScript would compile kernels for each shape, and the check of a replay compare others."""
    asked: list[tuple[object, torch.Tensor]] = []

    def plain(function: Any, x: torch.Tensor) -> Any:
        asked.append((function, x))
        return function

    monkeypatch.setattr(session_module, "on_cpu", plain)
    model, tokens = _tiny(torch.float32), torch.tensor([3])
    with torch.inference_mode():
        model.session([[1, 2]], torch.tensor([0]), 1, model.decode_weights(None)).step(tokens)
    assert [(function, x is tokens) for function, x in asked] == [(next_logits, True)]
    assert on_cpu(next_logits, tokens.to("meta")) is next_logits


def _distance(logits: torch.Tensor, exact: DecoderModel, sampled: list[int]) -> float:
    """From those of the whole sequence computed at once, as a share of them."""
    with torch.inference_mode():
        alone = exact.session([sampled], torch.tensor([0]), 1, exact.decode_weights(None)).logits[0]
    return float((logits - alone).norm() / alone.norm())


@pytest.mark.parametrize("keeps", [{2: [0, 2, 3, 5]}, {2: [3, 4]}, {1: [0, 5], 3: [1]}, {1: [2]}])
def test_rows_leave_length_classes_of_several_prompts(
    keeps: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short and long prompts, a class each: whichever rows leave them, length_buckets that stay, lose rows, vanish or
    are cut anew give what each row gives alone."""
    monkeypatch.setattr("sapo_backends.torch_backend.decode_session.BUCKET_COST", 20)
    model, lengths = _tiny(torch.float32), [3, 30, 2, 31, 1, 32]
    assert length_buckets(sorted(lengths), 1) == [3, 6]
    prompts = [[(7 * i + t) % 69 + 1 for t in range(length)] for i, length in enumerate(lengths)]
    for sampled, logits in _decoded(model, prompts, list(range(6)), keeps):
        assert _distance(logits, model, sampled) < 1e-4


@pytest.mark.parametrize("function", [next_logits, attend_slabs, attend_backward])
def test_torchscript_runs_the_hot_functions_here(function: Callable[..., object]) -> None:
    """The fast form is used where these tests run, and it is only a faster form."""
    assert isinstance(script_function(function), torch.jit.ScriptFunction)
    assert script_function(function) is script_function(function)


def test_what_torchscript_cannot_take_runs_as_it_stands() -> None:
    """Any number of arguments, for one, is more than TorchScript knows."""

    def plain(*numbers: int) -> int:
        return sum(numbers)

    assert script_function(plain) is plain


@given(st.integers(0, 50), st.integers(1, 9))
def test_shares_cover_everything_once(total: int, count: int) -> None:
    """Consecutive, none empty, sizes within one of each other."""
    parts = split_range(total, count)
    assert [i for part in parts for i in part] == list(range(total))
    assert not parts or max(map(len, parts)) - min(map(len, parts)) <= 1


def test_an_error_in_a_shard_waits_for_the_others() -> None:
    """The caller sees the first error only when no shard is still computing."""
    workers = ShardWorkers(2, parameters=1, device=torch.device("cpu"))
    finished = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            raise ValueError("shard 0")
        finished.set()
        return item

    with pytest.raises(ValueError, match="shard 0"):
        workers.map(work, [0, 1])
    assert finished.is_set()
    assert workers.map(lambda item: item + 1, [1, 2, 3]) == [2, 3, 4]
    workers.close()
