"""Which engine a machine should use, decided from figures alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_backends.measure.choice import (
    EngineCandidate,
    EngineMeasurement,
    EnginePreference,
    RoundWorkload,
    choose_engine,
    decode_measurements,
    encode_measurements,
    find_finalists,
    list_candidates,
    list_pair_candidates,
    merge_measurements,
    round_seconds,
)

WORK = RoundWorkload(rows=64, new_tokens=100)


def measured(name: str, generated: float, trained: float = 6400.0, **more: float) -> EngineMeasurement:
    """What the candidate "engine precision threads" did."""
    engine, precision, threads = name.split()
    candidate = EngineCandidate(engine, precision, int(threads))
    kind = "float32" if precision == "auto" else precision
    return EngineMeasurement(candidate, "cpu", kind, {1: 10.0, 64: generated}, update=trained, **more)  # type: ignore[arg-type]


def test_a_round_is_the_prompts_every_token_twice_and_the_sync_generator() -> None:
    one = measured("torch float32 1", 3200, 1600, first=0.5, hand_over=0.25)
    assert round_seconds(one, WORK) == pytest.approx(0.5 + 6400 / 3200 + 6400 / 1600 + 0.25)


def test_generation_counts_at_the_widest_width_that_the_round_fills() -> None:
    one = replace(measured("torch float32 1", 1000), generation={1: 10.0, 8: 100.0, 64: 1000.0})
    assert round_seconds(one, RoundWorkload(rows=16, new_tokens=10)) == pytest.approx(160 / 100 + 160 / 6400)


def test_a_base_in_four_bits_is_measured_where_it_is_asked_for_and_nowhere_else() -> None:
    assert {c.precision for c in list_candidates(["torch"], 1, EnginePreference(precision="4bit"))} == {"4bit"}
    assert "4bit" not in {c.precision for c in list_candidates(["torch"], 1, EnginePreference())}


def test_a_node_that_only_generates_needs_no_trainer() -> None:
    """llama.cpp is measured for it, and is chosen at the widths at which it is the faster one."""
    found = list_candidates(["torch", "llamacpp", "llamacpp+torch"], 2, EnginePreference(), trains=False)
    assert found[-1] == EngineCandidate("llamacpp", "auto", 2)
    assert "llamacpp" not in [c.engine for c in list_candidates(["torch", "llamacpp"], 2, EnginePreference())]
    torch, llama = measured("torch bfloat16 2", 300), measured("llamacpp auto 2", 100, 0.0)
    llama = replace(llama, generation={1: 25.0, 64: 100.0})
    for rows, engine in ((1, "llamacpp"), (64, "torch")):
        work = RoundWorkload(rows, 64, trains=False)
        choice = choose_engine([torch, llama], work)
        assert choice is not None
        assert choice.candidate.engine == engine
        assert list_pair_candidates(["llamacpp+torch"], [torch], work, EnginePreference()) == []
    assert round_seconds(llama, WORK) is None


def test_the_fastest_whole_round_wins_and_the_reason_names_the_next() -> None:
    choice = choose_engine([measured("torch float32 2", 2000), measured("torch bfloat16 2", 6000)], WORK)
    assert choice is not None
    assert choice.candidate == EngineCandidate("torch", "bfloat16", 2)
    assert "2.0 times as fast as the next, torch float32, 2 threads" in choice.reason


def test_of_two_that_are_about_as_fast_the_one_with_fewer_threads_wins() -> None:
    choice = choose_engine([measured("torch float32 4", 2040), measured("torch float32 2", 2000)], WORK)
    assert choice is not None
    assert choice.candidate.threads == 2
    assert "fewer threads" in choice.reason


def test_of_two_that_are_about_as_fast_the_one_that_rounds_less_wins() -> None:
    choice = choose_engine([measured("torch bfloat16 2", 2040), measured("torch float32 2", 2000)], WORK)
    assert choice is not None
    assert choice.candidate.precision == "float32"
    assert "less rounding" in choice.reason


@pytest.mark.parametrize(("generated", "engine"), [(2800, "torch"), (4000, "llamacpp+torch")])
def test_a_pair_must_make_the_whole_round_clearly_faster(generated: float, engine: str) -> None:
    """Generation 1.4 or twice as fast, the same update: the round only 1.17 or 1.33 times as fast."""
    single, pair = measured("torch float32 2", 2000, 2000), measured("llamacpp+torch auto 2", generated, 2000)
    choice = choose_engine([single, pair], WORK)
    assert choice is not None
    assert choice.candidate.engine == engine
    if engine == "torch":
        assert "1.2 times is required" in choice.reason


def test_the_hand_over_counts_against_a_pair() -> None:
    single, pair = measured("torch float32 2", 2000), measured("llamacpp+torch auto 2", 4000, hand_over=2.0)
    choice = choose_engine([single, pair], WORK)
    assert choice is not None
    assert choice.candidate.engine == "torch"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (EnginePreference(), EngineCandidate("torch", "bfloat16", 2)),
        (EnginePreference(precision="float32"), EngineCandidate("torch", "float32", 1)),
        (EnginePreference(threads=1), EngineCandidate("torch", "float32", 1)),
        (EnginePreference(engine="mlx"), EngineCandidate("mlx", "auto", 0)),
    ],
)
def test_what_the_person_set_is_not_overruled(wanted: EnginePreference, expected: EngineCandidate) -> None:
    figures = [measured("torch bfloat16 2", 9000), measured("torch float32 1", 2000), measured("mlx auto 0", 500)]
    choice = choose_engine(figures, WORK, wanted)
    assert choice is not None
    assert choice.candidate == expected


def test_without_a_measurement_for_the_settings_nothing_is_chosen() -> None:
    assert choose_engine([], WORK) is None
    assert choose_engine([measured("torch bfloat16 2", 9000)], WORK, EnginePreference(threads=3)) is None


def test_what_failed_or_does_not_train_is_never_chosen() -> None:
    failed = replace(measured("torch bfloat16 2", 9000), failure="it crashes here")
    choice = choose_engine(
        [failed, measured("torch float32 2", 100), measured("plugin auto 0", 9000, trained=0.0)], WORK
    )
    assert choice is not None
    assert choice.candidate == EngineCandidate("torch", "float32", 2)


def test_torch_is_tried_in_both_precisions_with_doubling_threads() -> None:
    found = list_candidates(["torch", "mlx", "llamacpp", "fake"], 6, EnginePreference())
    assert {(c.precision, c.threads) for c in found} == {(p, t) for p in ("float32", "bfloat16") for t in (1, 2, 4, 6)}
    assert {c.engine for c in found} == {"torch"}


def test_bfloat16_is_tried_only_where_something_computes_in_it_unless_it_is_asked_for() -> None:
    def tried(wanted: str = "auto", **has: bool) -> set[str]:
        return {c.precision for c in list_candidates(["torch"], 2, EnginePreference(precision=wanted), **has)}

    assert tried(bfloat16=False) == {"float32"}
    assert tried("bfloat16", bfloat16=False) == {"bfloat16"}
    assert tried(bfloat16=False, gpu=True) == {"float32", "bfloat16"}


def test_mlx_is_tried_first_on_apple_silicon_only() -> None:
    assert [c.engine for c in list_candidates(["torch", "mlx"], 1, EnginePreference(), apple=True)] == [
        "mlx",
        "torch",
        "torch",
    ]


def test_on_a_card_threads_do_not_matter() -> None:
    assert {c.threads for c in list_candidates(["torch"], 8, EnginePreference(), gpu=True)} == {0}


def test_an_engine_that_was_asked_for_is_the_only_one_tried() -> None:
    assert list_candidates(["torch", "fake"], 2, EnginePreference(engine="fake")) == [EngineCandidate("fake")]
    assert list_candidates(["torch", "mine"], 2, EnginePreference(engine="mine")) == [EngineCandidate("mine")]
    assert list_candidates(["torch"], 2, EnginePreference("torch", "float32", 2)) == [
        EngineCandidate("torch", "float32", 2)
    ]


def test_a_precision_that_torch_lacks_is_the_generators() -> None:
    wanted = EnginePreference("llamacpp+torch", "q8_0")
    found = list_candidates(["torch", "llamacpp", "llamacpp+torch"], 1, wanted)
    assert [c.precision for c in found] == ["float32", "bfloat16"]
    figures = [measured("torch float32 1", 500)]
    assert list_pair_candidates(["torch", "llamacpp", "llamacpp+torch"], figures, WORK, wanted) == [
        EngineCandidate("llamacpp+torch", "q8_0", 1)
    ]


def test_a_pair_is_tried_with_the_threads_of_its_fastest_trainer() -> None:
    engines = ["torch", "llamacpp", "llamacpp+torch", "llamacpp+mlx"]
    figures = [measured("torch float32 1", 500), measured("torch float32 4", 2000)]
    assert list_pair_candidates(engines, figures, WORK, EnginePreference()) == [
        EngineCandidate("llamacpp+torch", "auto", 4)
    ]
    assert list_pair_candidates(engines, figures, WORK, EnginePreference(engine="torch")) == []


def test_those_near_the_fastest_are_measured_again_and_the_better_figures_count() -> None:
    near, far = measured("torch float32 2", 5000), measured("torch float32 1", 500)
    best = measured("torch bfloat16 2", 6000, first=0.2)
    assert find_finalists([near, far, best], WORK) == [near.candidate, best.candidate]
    assert find_finalists([far, best], WORK) == []
    assert find_finalists([], WORK) == []
    second = measured("torch bfloat16 2", 4000, 7000, first=0.1)
    assert merge_measurements(best, second) == measured("torch bfloat16 2", 6000, 7000, first=0.1)


def test_a_second_measurement_that_fails_spoils_nothing() -> None:
    good = measured("torch bfloat16 2", 6000)
    assert merge_measurements(good, EngineMeasurement(good.candidate, failure="killed")) == good


RATES = st.floats(0.001, 1e9)


@given(
    st.lists(
        st.builds(
            EngineMeasurement,
            st.builds(EngineCandidate, st.sampled_from(["torch", "llamacpp+torch"]), st.text(), st.integers(0, 64)),
            generation=st.dictionaries(st.integers(1, 512), RATES),
            update=RATES,
            memory=st.integers(0, 2**50),
            failure=st.text(),
        )
    )
)
def test_measurements_survive_the_file(figures: list[EngineMeasurement]) -> None:
    assert decode_measurements(json.loads(json.dumps(encode_measurements(figures)))) == figures


@pytest.mark.parametrize("junk", [None, 3, [3], [{}], [{"candidate": {}}], {"a": 1}])
def test_other_json_is_no_measurement(junk: object) -> None:
    with pytest.raises(ValueError, match="no measurements"):
        decode_measurements(junk)
