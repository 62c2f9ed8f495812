"""A message bus of the tests' own with one service on it that answers for logind and NetworkManager: a real bus, real gdbus."""

from __future__ import annotations

import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from jeepney import MessageFlag, MessageType, new_error, new_method_return
from jeepney.bus_messages import message_bus
from jeepney.io.blocking import open_dbus_connection

NAMES = ("org.freedesktop.login1", "org.freedesktop.NetworkManager")
TYPES = {"IdleHint": "b", "IdleSinceHintMonotonic": "t", "Metered": "u"}
CONFIG = """<busconfig><type>session</type><listen>unix:tmpdir={folder}</listen><policy context="default">
<allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>"""


@contextmanager
def fake_bus(properties: Mapping[str, object]) -> Iterator[str]:
    """The address of a bus whose services tell these properties, as they are at each moment."""
    with tempfile.TemporaryDirectory() as folder:
        config = f"{folder}/bus.conf"
        with open(config, "w") as file:
            file.write(CONFIG.format(folder=folder))
        daemon = subprocess.Popen(
            ["dbus-daemon", f"--config-file={config}", "--print-address", "--nofork"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert daemon.stdout is not None
        try:
            address = daemon.stdout.readline().strip()
            service = threading.Thread(
                target=_serve, args=(address, properties, ready := threading.Event()), daemon=True
            )
            service.start()
            assert ready.wait(20)
            yield address
        finally:
            daemon.terminate()
            daemon.wait()
            daemon.stdout.close()
            service.join(20)


def _serve(address: str, properties: Mapping[str, object], ready: threading.Event) -> None:
    """Until the bus is gone."""
    with open_dbus_connection(bus=address) as connection:
        for name in NAMES:
            connection.send_and_get_reply(message_bus.RequestName(name))
        ready.set()
        while True:
            try:
                message = connection.receive()
            except (OSError, EOFError):
                return
            if (
                message.header.message_type != MessageType.method_call
                or message.header.flags & MessageFlag.no_reply_expected
            ):
                continue
            asked = message.body[1] if len(message.body) == 2 else ""
            if asked in properties:
                connection.send(new_method_return(message, "v", ((TYPES[asked], properties[asked]),)))
            else:
                connection.send(new_error(message, "org.freedesktop.DBus.Error.UnknownProperty"))
