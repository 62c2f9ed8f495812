"""What is told of a model beside its record: by what it was computed the last time."""

from __future__ import annotations

from contextlib import closing

import pytest

from sapo_desktop import cli
from sapo_desktop.dashboard.look import UNICODE
from sapo_desktop.dashboard.screens.models.screen import model_details
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import store
from sapo_desktop.services.models.shelf.overview import load_overview
from sapo_swarm.config import RunConfig
from sapo_swarm.events import RunStarted
from sapo_swarm.node.journal import Journal


def session(computed_by: str) -> RunStarted:
    return RunStarted(
        run_id="kim", mode="silo", model="starter", backend="torch", device="cpu", precision="float32", method="full",
        parameters=1, tasks=("arc_1d",), algorithm="grpo", group_size=8, local_groups=8, external_groups=0, round=0,
        rounds_planned=0, seed=1, versions={}, computed_by=computed_by,
    )  # fmt: skip


def test_the_decode_path_of_the_last_training_is_shown_where_its_engine_said_it(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    model = store.create_model_folder(home, "kim", RunConfig(model="starter", tasks=("arc_1d",)))
    with closing(Journal(model.folder / "journal.db")) as journal:
        for said in ("", "own decoder, compiled C kernels", ""):
            journal.append([session(said)])
            one = load_overview(store.find_model(home, "kim"))
            assert cli.run_command_line(["models", "show", "kim"]) == 0
            shown = (model_details(one, 0.0, 100, UNICODE).plain, capsys.readouterr().out)
            for text in shown:
                assert ("own decoder, compiled C kernels, float32 on cpu" in text) == bool(said)
                assert ("\ncomputed " in text) == bool(said)
