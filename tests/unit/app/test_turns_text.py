"""Episodes in the rollout view."""

from __future__ import annotations

import msgspec
from tests.unit.app.test_dashboard_text import FORBIDDEN, HOSTILE, hostile_state

from sapo_desktop.dashboard.look import UNICODE
from sapo_desktop.dashboard.screens.rollouts import detail as rollouts_detail
from sapo_swarm.types import EpisodeTurn


def test_an_episode_is_shown_turn_by_turn_as_plain_text() -> None:
    event = hostile_state().groups.last
    assert event is not None
    turns = (EpisodeTurn("<open>7</open>"), EpisodeTurn(HOSTILE, environment=True), EpisodeTurn("It is a key."))
    rollouts = tuple(msgspec.structs.replace(rollout, turns=turns) for rollout in event.group.rollouts)
    group = msgspec.structs.replace(event.group, rollouts=rollouts)
    said = rollouts_detail.group_details(msgspec.structs.replace(event, group=group), UNICODE).plain
    assert not FORBIDDEN.search(said)
    lines = [line.strip() for line in said.splitlines()]
    assert "turn 1  <open>7</open>" in lines
    assert "turn 2  It is a key." in lines
    assert any(line.startswith("tool says  ") for line in lines)
    assert "several turns: never shared with a swarm" in lines
