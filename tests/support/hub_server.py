"""A stand-in for the hub: its listing, its files, ranges, redirects, refusals and accidents, on a real socket."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """files: repository -> name -> bytes. The rest are accidents, changed by a test while it runs.

    cut: a connection ends after so many bytes of a weight file, 0 = never; dies: the hub answers 503 from then on.
    hold: such a file stops there until `go` is set, and then the connection ends. claim: bytes that the listing gives such a
    file, 0 = its own.
    """

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: dict[str, str] = field(default_factory=dict)
    ranges: bool = True
    cut: int = 0
    dies: bool = False
    hold: int = 0
    claim: int = 0
    lie: bool = False
    status: int = 0
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    go: threading.Event = field(default_factory=threading.Event)
    held: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def add(self, repository: str, folder: Path) -> None:
        self.files[repository] = {f.name: f.read_bytes() for f in folder.iterdir() if f.is_file()}

    def starts(self, name: str) -> list[str]:
        """The Range headers of the requests for a file, in order."""
        return [span for path, span, _ in self.requests if path.endswith(name)]


def git_digest(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def listing(hub: Hub, repository: str) -> dict[str, Any]:
    siblings = []
    for name, data in hub.files[repository].items():
        weights = name.endswith(".safetensors")
        size = hub.claim if hub.claim and weights else len(data)
        entry: dict[str, Any] = {"rfilename": name, "size": size, "blobId": git_digest(data)}
        if weights:
            entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": size, "pointerSize": 134}
        siblings.append(entry)
    gated = "manual" if repository in hub.gated else False
    return {"id": repository, "sha": COMMIT, "gated": gated, "tags": ["license:apache-2.0"], "siblings": siblings}


@contextmanager
def hub_server() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            span, token = self.headers.get("Range", ""), self.headers.get("Authorization", "")
            hub.requests.append((self.path, span, token))
            parts = self.path.partition("?")[0].strip("/").split("/")
            if hub.status:
                return self.answer(hub.status)
            repository = "/".join(parts[2:4] if parts[0] == "api" else parts[1:3] if parts[0] == "cdn" else parts[:2])
            if repository not in hub.files:
                return self.answer(401, X_Error_Code="RepoNotFound")
            if parts[0] == "api":
                return self.answer(200, json.dumps(listing(hub, repository)).encode())
            wanted = hub.gated.get(repository)
            if parts[0] != "cdn" and wanted and token != f"Bearer {wanted}":
                return self.answer(401 if not token else 403, X_Error_Code="GatedRepo")
            if parts[0] != "cdn" and parts[-1].endswith(".safetensors"):
                return self.answer(302, Location=f"http://localhost:{port}/cdn/{repository}/{parts[-1]}")
            return self.file(parts[-1], hub.files[repository][parts[-1]], span)

        def file(self, name: str, data: bytes, span: str) -> None:
            if hub.lie and name.endswith(".safetensors"):
                data = data[:-1] + bytes([data[-1] ^ 1])
            start = int(span.removeprefix("bytes=").partition("-")[0] or 0) if hub.ranges else 0
            self.send_response(206 if span and hub.ranges else 200)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            if name.endswith(".safetensors") and hub.hold > start:
                self.wfile.write(data[start : hub.hold])
                self.wfile.flush()
                hub.held.set()
                hub.go.wait(60)
                self.close_connection = True
                return
            if name.endswith(".safetensors") and hub.cut:
                self.wfile.write(data[start : start + hub.cut])
                if start + hub.cut < len(data):
                    self.close_connection = True
                    hub.status = 503 if hub.dies else 0
                return
            self.wfile.write(data[start:])

        def handle(self) -> None:
            try:
                super().handle()
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    port = server.server_port
    hub.url = f"http://127.0.0.1:{port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.go.set()
        server.shutdown()
        server.server_close()
        thread.join()
