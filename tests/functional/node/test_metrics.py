"""A node's metrics for Prometheus: scraped from a real node, on loopback only."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.support.node_process import FAKE, calm, environment, sapo
from tests.support.records import evaluation, finished

from sapo_swarm.events import Vitals
from sapo_swarm.node.control_server import _HELD_OUT, _LAST, _SUMS, _VITALS
from sapo_swarm.node.journal import read_only
from sapo_swarm.servers import MOST, MetricsPage

ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/metrics")
SAMPLE = re.compile(r'[a-z_0-9]+(\{[a-z_0-9]+="[^"\n]*"(,[a-z_0-9]+="[^"\n]*")*\})? -?[0-9.e+-]+')


@contextmanager
def scraped(home: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A node that serves metrics, and the port."""
    calm(home)
    process = subprocess.Popen(
        [sys.executable, "-m", "sapo_desktop", "node", *arguments],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        port = next(int(found[1]) for line in process.stdout if (found := ADDRESS.search(line)))
        yield process, port
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def page(port: int, host: str = "") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Host": host} if host else {})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


def after_rounds(process: subprocess.Popen[str], count: int) -> None:
    """Until so many rounds were told, a line each."""
    assert process.stdout is not None
    for line in process.stdout:
        count -= line.startswith("round") and "local" in line
        if not count:
            return


def test_a_real_node_is_scraped_and_agrees_with_its_journal(tmp_path: Path) -> None:
    with scraped(tmp_path, *FAKE, "--model", "fake:0.02", "--metrics", "0") as (process, port):
        after_rounds(process, 3)
        text = page(port)
        listening = {c.laddr.ip for c in psutil.Process(process.pid).net_connections() if c.status == "LISTEN"}
        assert listening == {"127.0.0.1"}
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        process.stdout.read()
        assert process.wait() == 0
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line for line in lines if not SAMPLE.fullmatch(line)] == []
    values = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
    done = int(values["sapo_node_rounds_total"])
    rounds = read_only(next((tmp_path / "data" / "models").glob("*/journal.db")), ("round",))
    told = rounds[:done]
    assert done >= 3
    assert values["sapo_node_tokens_generated_total"] == sum(event.tokens_generated for event in told)
    assert values["sapo_node_reward_local"] == told[-1].reward_local
    assert "sapo_node_reward_external" not in values, "a silo has none"
    assert values['sapo_node_state{state="running"}'] == 1
    assert sum(value for name, value in values.items() if name.startswith("sapo_node_state{")) == 1


def test_every_metric_that_the_page_documents_has_a_source() -> None:
    """Something in the node sets the field that it is read from to another value than None."""
    machine = Vitals(tokens_per_s=900.0, rounds_per_hour=90.0, memory=10**9, cpu_percent=180.0, celsius=60.0)
    for fields, event in ((_VITALS, machine), (_LAST, finished(3)), (_HELD_OUT, evaluation(3)), (_SUMS, finished(3))):
        assert [name for name in fields if not hasattr(event, name)] == []
    assert [name for name in _VITALS if getattr(machine, name) is None] == []


def test_only_this_machines_names_are_answered(tmp_path: Path) -> None:
    with scraped(tmp_path, *FAKE, "--model", "fake:0.02", "--metrics", "0") as (_, port):
        assert "sapo_node_state" in page(port, f"localhost:{port}")
        with pytest.raises(urllib.error.HTTPError, match="403") as refused:
            page(port, f"example.org:{port}")
        refused.value.close()


def test_silent_connections_of_anybody_use_up_no_files_of_the_node(tmp_path: Path) -> None:
    """The newest takes the place of the one that was silent longest, and a page is served meanwhile."""
    with scraped(tmp_path, *FAKE, "--model", "fake:0.02", "--metrics", "0") as (process, port):
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(3 * MOST)]
        for early in silent[:MOST]:
            early.settimeout(30)
            assert early.recv(1) == b"", "it gave way"
        assert "sapo_node_state" in page(port)
        held = [c for c in psutil.Process(process.pid).net_connections() if c.status == "ESTABLISHED"]
        assert len(held) <= MOST
        for each in silent:
            each.close()


def test_a_node_works_without_metrics_where_the_port_is_taken_and_says_so(tmp_path: Path) -> None:
    """Whether it was typed or stands in the settings."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert sapo(tmp_path, "config", "set", "node.metrics_port", port).returncode == 0
        for typed in (("--metrics", port), ()):
            done = sapo(tmp_path, "node", *FAKE, "--rounds", "1", *typed)
            assert done.returncode == 0, done.stderr
            assert f"Port {port} cannot be used for metrics" in done.stderr
            assert "The node works without them" in done.stderr


def test_names_of_people_do_not_break_the_page() -> None:
    page = MetricsPage("sapo_")
    page.add_each("info", "gauge", "About.", [({"model": 'a"b\\c\nd'}, 1.0)])
    page.add("absent", "gauge", "Nothing.", None)
    assert page.text().splitlines()[2] == r'sapo_info{model="a\"b\\c\nd"} 1'
    assert "sapo_absent " not in page.text().replace("# HELP sapo_absent ", "").replace("# TYPE sapo_absent ", "")
