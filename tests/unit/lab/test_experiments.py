"""Experiments as TOML: what ships is valid, what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.own_tasks import library_in

import sapo_lab
from sapo_lab.report.table import is_plain
from sapo_lab.schema import ArmConditions, BadExperiment, load_experiment, parse_experiment
from sapo_swarm.config import RunConfig

SMALL = {"name": "e", "run": {"rounds": 3}, "arms": [{"name": "a"}]}


@pytest.mark.parametrize("name", sorted(sapo_lab.list_experiments()))
def test_every_experiment_that_ships_is_valid_and_asks_a_question(name: str) -> None:
    with library_in(sapo_lab.TASKS):
        experiment = load_experiment(sapo_lab.list_experiments()[name])
    assert experiment.name == name
    assert experiment.question.endswith("?")
    assert all(arm.run.learning_rate for arm in experiment.arms), "it stays what it was when the app's default changes"
    alone = ("smoke", "real-model")  # to be tried at all; a run of ten hours on somebody's laptop
    assert name in alone or len(experiment.seeds) >= 3


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"nodez": 3}, "Did you mean 'nodes'"),
        ({"run": {"rounds": 3, "learningrate": 1}}, "Did you mean 'learning_rate'"),
        ({"arms": [{"name": "a", "external_group": 4}]}, "Did you mean 'external_groups'"),
        ({"conditions": {"churm": 0.5}}, "Did you mean 'churn'"),
        ({"arms": [{"name": "a", "against": ["b"]}]}, "no arm 'b'"),
        ({"arms": [{"name": "a", "sampling": "uniform_nonzer"}]}, "Did you mean 'uniform_nonzero'"),
        ({"arms": [{"name": "a", "algorithm": "grop"}]}, "Did you mean 'grpo'"),
        ({"arms": [{"name": "a", "tasks": ["bff"]}]}, "Did you mean 'bf'"),
        ({"arms": [{"name": "a"}, {"name": "a"}]}, "twice"),
        ({"arms": [{"name": "../a"}]}, "name"),
        ({"arms": [{"name": "a", "churn": 2.0}]}, "churn"),
        ({"arms": [{"name": "a", "rounds": 0}]}, "rounds"),
        ({"run": {"rounds": 3, "seed": 1}}, "seeds"),
        ({"arms": [{"name": "a", "starved": "topr"}]}, "starved"),
        ({"arms": [{"name": "a", "withheld": ["zebra"]}]}, "no task 'zebra' to withhold"),
        ({"arms": 3}, "arms"),
        ({"run": 3}, "run"),
    ],
)
def test_what_is_wrong_in_an_experiment_is_named_with_the_nearest_match(
    tmp_path: Path, change: dict[str, object], hint: str
) -> None:
    import tomli_w

    path = tmp_path / "e.toml"
    path.write_text(tomli_w.dumps({**SMALL, **change}))
    with pytest.raises(BadExperiment, match=hint):
        load_experiment(path)


def test_an_arm_takes_shared_settings_and_changes_its_own() -> None:
    experiment = parse_experiment(
        {**SMALL, "conditions": {"churn": 0.5}, "arms": [{"name": "a", "local_groups": 2, "loss": 0.1}]}
    )
    assert experiment.arms[0].run == RunConfig(rounds=3, local_groups=2, external_advantages="all")
    assert experiment.arms[0].conditions == ArmConditions(churn=0.5, loss=0.1)


@pytest.mark.parametrize("change", [{"replay_groups": 1}, {"curriculum": "tasks"}, {"contrast": 2}, {"loss": 0.1}])
def test_the_papers_figures_stand_beside_its_own_arms_only(change: dict[str, object]) -> None:
    plain, changed = parse_experiment({**SMALL, "arms": [{"name": "a"}, {"name": "b", **change}]}).arms
    assert is_plain(plain)
    assert not is_plain(changed)
