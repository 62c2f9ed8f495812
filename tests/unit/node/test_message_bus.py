"""logind and NetworkManager, asked over a real message bus that answers as the tests say."""

from __future__ import annotations

import math
import shutil

import pytest

from sapo_swarm.node.governor import sensors
from sapo_swarm.node.governor.sensors import MeteredConnection, SessionIdle

pytest.importorskip("jeepney")
pytestmark = pytest.mark.skipif(
    not (shutil.which("dbus-daemon") and shutil.which("gdbus")), reason="needs dbus-daemon and gdbus"
)


def test_logind_and_network_manager_are_asked_over_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.fake_bus import fake_bus

    told: dict[str, object] = {"IdleHint": False, "IdleSinceHintMonotonic": 40_000_000, "Metered": 1}
    now = 100.0
    with fake_bus(told) as address:
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
        idle, network = SessionIdle(lambda: now), MeteredConnection(lambda: now)
        assert idle() == math.inf, "a desktop that never sets the hint says nothing"
        told["IdleHint"] = True
        assert idle() == 60.0
        told["IdleHint"] = False
        assert idle() == 0.0, "it sets the hint, so somebody is there"
        assert network.read() is True
        told["Metered"] = 4
        assert network.read() is True, "asked seldom"
        now += sensors.MESSAGE_BUS_LOOK_EVERY_S
        assert network.read() is False
