"""Which tasks and presets of others a node takes: how softly an answer is judged is not for its sender to choose."""

from __future__ import annotations

from tests.unit.swarm.test_receive import ME, NOW, PEER, SWARM, AddOne, signed

from sapo_desktop.services.swarms.membership import acceptance_rules
from sapo_swarm.config import RunConfig
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.protocol.receive import GroupReceiver
from sapo_swarm.types import TaskRef

SOFT = TaskRef("basic_arithmetic", "library", 5)


def receiver(config: RunConfig) -> GroupReceiver:
    return GroupReceiver(SWARM, ME.node, AddOne(), acceptance_rules(config, frozenset()))


async def test_a_strict_node_refuses_a_group_of_preset_library() -> None:
    strict = receiver(RunConfig())
    assert await strict.receive([signed(PEER, ref=SOFT)], NOW) == []
    assert strict.rejected == {"task": 1}


async def test_a_run_that_is_judged_by_the_library_itself_takes_such_groups() -> None:
    assert await receiver(RunConfig(preset="library")).receive([signed(PEER, ref=SOFT)], NOW)


def test_a_coordinator_passes_preset_library_on_only_where_its_host_names_it() -> None:
    assert "library" not in CoordinatorSettings().presets
    assert CoordinatorSettings(presets=("library",)).presets == ("library",)


async def test_a_group_of_a_task_that_this_run_does_not_name_is_refused_as_task() -> None:
    mine = receiver(RunConfig(tasks=("bf", "decimal_arithmetic")))
    assert await mine.receive([signed(PEER)], NOW) == []
    assert await mine.receive([signed(PEER, ref=TaskRef("decimal_arithmetic", "starter", 5))], NOW)
    assert mine.rejected == {"task": 1}
