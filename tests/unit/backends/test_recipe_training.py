"""The recipe's own trainer: what lies side by side in a line does not mix, and a stopped run goes on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe import model, train
from recipe.blend import blend
from recipe.data import Example
from recipe.harder import pools
from recipe.tokenizer import STOP, prompt_text
from recipe.tokenizer import train as train_tokenizer

SHAPE = model.Shape(hidden=32, layers=2, heads=2, kv_heads=1, mlp=48)
CPU = torch.device("cpu")


def rows_of(*lengths: int) -> list[train.Row]:
    rng = np.random.default_rng(0)
    return [train.Row(rng.integers(3, 1000, n).astype(np.uint16), ((n // 2, n),)) for n in lengths]


@settings(max_examples=50, deadline=None, database=None)
@given(st.lists(st.integers(2, 250), min_size=1, max_size=60))
def test_every_example_is_in_exactly_one_line_and_no_line_overflows(lengths: list[int]) -> None:
    """Save one that is longer than a line, which stands alone."""
    rows = rows_of(*lengths)
    lines = train.fill_lines(rows, 192)
    assert sorted(len(r.ids) for line in lines for r in line) == sorted(lengths)
    assert all(sum(len(r.ids) for r in line) <= 192 or len(line) == 1 for line in lines)


def test_examples_side_by_side_do_not_see_each_other() -> None:
    """The hidden states of an example are the same alone and as the second in a line."""
    net = model.Qwen2(SHAPE)
    net.initialise(0)
    first, second = rows_of(7, 9)
    both, _, mask = train.collate([[first, second]], 0, CPU)
    alone, _, own = train.collate([[second]], 0, CPU)
    torch.testing.assert_close(net(both, mask=mask)[:, 7:], net(alone, mask=own), rtol=1e-4, atol=1e-5)


def test_a_loss_is_taken_on_the_wanted_spans_only() -> None:
    """Each target is the token that follows; everything else is left out."""
    rows = rows_of(6, 4)
    ids, targets, _ = train.collate([rows], 0, CPU)
    wanted = (targets[0] != -100).nonzero().squeeze(1).tolist()
    assert wanted == [2, 3, 4, 7, 8]
    assert all(targets[0, n] == ids[0, n + 1] for n in wanted)


def toy() -> tuple[list[Example], train.Tokenizer]:
    examples = [Example("basic_arithmetic", "starter", f"Say {n}.", f"<answer>{n}</answer>", "") for n in range(10)]
    return examples, train_tokenizer([prompt_text(e.prompt) + e.completion for e in examples])


def says_seven(net: model.Qwen2, words: train.Tokenizer) -> bool:
    """The likeliest answer to the seventh example of `toy` is its own, to the stop token."""
    prompt, whole = (words.encode(prompt_text("Say 7.") + end).ids for end in ("", "<answer>7</answer>" + STOP))
    likeliest: list[int] = net.logits(net(torch.tensor([whole])))[0].argmax(-1).tolist()
    return likeliest[len(prompt) - 1 : -1] == whole[len(prompt) :]


def ticking() -> Callable[[], float]:
    """A clock by which a step takes a fiftieth of a second, however busy this machine is."""
    ticks = itertools.count()
    return lambda: next(ticks) / 100


def test_a_run_learns_and_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """Weights and momenta come back from the checkpoint; the clock does too."""
    examples, words = toy()
    rows = {"basic_arithmetic": train.encode(examples, words)}
    said: list[str] = []

    def go(minutes: float) -> tuple[model.Qwen2, dict[str, float]]:
        net = model.Qwen2(SHAPE)
        net.initialise(0)
        plan = train.Plan(minutes=minutes, height=4, half=False)
        return net, train.run(net, rows, [(1.0, {})], [(1.0, {})], words, plan, tmp_path, said.append, ticking())

    first, early = go(0.05)
    again, late = go(0.05)
    assert late["step"] == early["step"]  # its time was up already
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    net, done = go(0.1)
    assert done["step"] > early["step"]
    assert says_seven(net, words)


def test_the_learning_rate_warms_up_stays_and_falls() -> None:
    """A factor in (0, 1]."""
    plan = train.Plan(minutes=1)
    factors = [train.schedule(p / 100, plan) for p in range(101)]
    assert factors[0] < factors[1] < factors[2] == 1.0
    assert factors[50] == 1.0
    assert factors[-1] == pytest.approx(0.05)


def test_the_polish_is_a_second_schedule_that_draws_other_tasks(tmp_path: Path) -> None:
    """With the first schedule's time used up, only the polish's tasks are learned; the clock counts both."""
    examples, words = toy()
    rows = {"basic_arithmetic": train.encode(examples, words), "bf": train.encode(examples, words)[:1]}
    net = model.Qwen2(SHAPE)
    net.initialise(0)
    plan = train.Plan(minutes=0.01, polish=0.08, polish_rate=1.0, height=4, half=False)
    main, polish = [(1.0, {"basic_arithmetic": 0.0})], [(1.0, {"bf": 0.0})]
    done = train.run(net, rows, main, polish, words, plan, tmp_path, print, ticking())
    assert done["polishing"]
    assert done["seconds"] >= 5.4
    assert says_seven(net, words)
    assert plan.at(1.0) == (True, pytest.approx(0.4 / 4.8))
    assert plan.at(0.3) == (False, pytest.approx(0.5))


def test_harder_questions_are_a_pool_of_their_own_that_is_drawn_from_when_it_is_named() -> None:
    easy = Example("basic_arithmetic", "starter", "Calculate 1 + 2.", "<answer>3</answer>", "")
    hard = Example("basic_arithmetic", "starter", "Calculate 17 + 2.", "<answer>19</answer>", "")
    far = Example("binary_matrix", "starter", "0 1", "<answer>0 5</answer>", "")
    near = Example("binary_matrix", "starter", "0 1", "<answer>0 1</answer>", "")
    found = pools([easy, hard], further=[far, near])
    assert found == {
        "basic_arithmetic": [easy, hard],
        "basic_arithmetic, harder": [hard],
        "binary_matrix, harder": [far],
    }
    rows = {"basic_arithmetic": rows_of(8), "basic_arithmetic, harder": rows_of(9), "bf": rows_of(7)}

    def drawn(weights: dict[str, float]) -> set[int]:
        pack = next(train.batches(rows, lambda: weights, 16, 64, 0))
        return {len(row.ids) for line in pack for row in line}

    assert drawn({}) == {8, 7}
    assert drawn({"bf": 0.0, "basic_arithmetic, harder": 1.0}) == {8, 9}


def polished(folder: Path, seed: int) -> Path:
    net = model.Qwen2(SHAPE)
    net.initialise(seed)
    model.save(net, folder, 1, 2)
    (folder / "recipe.json").write_text(json.dumps({"name": "x", "done": {"step": seed}, "plan": {}, "polish": []}))
    return folder


def test_a_blend_lies_between_its_two_models_and_names_both(tmp_path: Path) -> None:
    first, second = polished(tmp_path / "a", 1), polished(tmp_path / "b", 2)
    blend(first, second, 0.25, tmp_path / "c")
    mixed, one, two = (model.load(tmp_path / name).state_dict() for name in "cab")
    for name, weight in mixed.items():
        torch.testing.assert_close(weight, 0.75 * one[name] + 0.25 * two[name], rtol=0.01, atol=0.001)
    record = json.loads((tmp_path / "c" / "recipe.json").read_text())
    assert record["done"] == {"step": 1}
    other = {"done": {"step": 2}, "plan": {}, "polish": []}
    assert record["afterwards"] == [{"mean_with": {"share": 0.25, **other}}]
    blend(tmp_path / "c", None, 0.5, tmp_path / "d", temperature=2.0)
    record = json.loads((tmp_path / "d" / "recipe.json").read_text())
    assert record["afterwards"] == [{"mean_with": {"share": 0.25, **other}}, {"logits_divided_by": 2.0}]


def test_a_blend_with_a_temperature_has_the_logits_of_its_mean_divided_by_it(tmp_path: Path) -> None:
    first, second = polished(tmp_path / "a", 1), polished(tmp_path / "b", 2)
    blend(first, second, 0.25, tmp_path / "plain")
    blend(first, second, 0.25, tmp_path / "soft", temperature=2.0)  # a power of two rounds nothing
    plain, soft = (model.load(tmp_path / name).eval()(torch.arange(12)[None]) for name in ("plain", "soft"))
    torch.testing.assert_close(2.0 * soft, plain)
    with pytest.raises(ValueError, match="above 0"):
        blend(first, second, 0.25, tmp_path / "none", temperature=0.0)


def test_a_blend_of_unlike_models_or_a_share_beyond_one_is_refused(tmp_path: Path) -> None:
    first, second = polished(tmp_path / "a", 1), polished(tmp_path / "b", 2)
    with pytest.raises(ValueError, match=r"lies in \[0, 1\]"):
        blend(first, second, 1.5, tmp_path / "c")
    other = model.Qwen2(model.Shape(hidden=32, layers=1, heads=2, kv_heads=1, mlp=48))
    other.initialise(0)
    model.save(other, second, 1, 2)
    (second / "recipe.json").write_text("{}")
    with pytest.raises(ValueError, match="not the same shape"):
        blend(first, second, 0.5, tmp_path / "c")
