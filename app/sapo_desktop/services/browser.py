"""The dashboard in a browser: textual-serve, made safe for a machine with other users and a browser with other tabs.

Whoever reaches the dashboard controls the node. So the address holds a key that only the person who started it sees, and no
dashboard starts for a tab that does not present it. The page keeps the key for its tab (web/page.js), never in a cookie: a
browser sends cookies to every port of this machine, whoever listens there. Only this machine's names are answered; the page
holds nothing secret and loads nothing from elsewhere. A tab whose dashboard was quit says so; one that lost its connection,
or whose dashboard crashed, reconnects by itself (web/page.js tells them apart by the websocket's close code).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import socket
import string
from collections.abc import Awaitable, Callable
from importlib import resources

from aiohttp import WSCloseCode, web
from textual_serve.app_service import AppService
from textual_serve.server import Server, to_int

from sapo_desktop.errors import AppError
from sapo_desktop.paths import own_command, quote_command
from sapo_swarm.servers import FewConnections, server_runner

HOST = "127.0.0.1"
_SHUTDOWN_S = 2.0
_FONT_SIZE = 16
_HEARTBEAT_S = 15.0
_LOCKED = (
    "This dashboard opens with the whole address that sapo-desktop serve printed: the key in it is missing or old."
)
_PROTOCOL = "sapo-desktop"
"""The subprotocol of a tab's websocket, followed by the key: a page can set no other header of a websocket."""
_OPEN = ("/", "/page.js", "/static")
"""What is served without the key: the page and its files."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Dashboard(AppService):  # type: ignore[misc]  # textual-serve ships no types
    """The process behind a tab. If it dies silently, the tab's socket is closed too, so that no tab hangs."""

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await self.remote_close(code=WSCloseCode.INTERNAL_ERROR)  # does nothing if it is closed already


class DashboardServer(Server):  # type: ignore[misc]  # textual-serve ships no types
    """One dashboard process per browser tab, all of them clients of the same node."""

    def __init__(self, port: int) -> None:
        super().__init__(quote_command(*own_command()), host=HOST, port=port, title="sapo-desktop")
        self.key = secrets.token_urlsafe(18)
        self._hosts = {f"{name}:{port}" for name in (HOST, "localhost")}
        self._tabs: set[web.WebSocketResponse] = set()
        self._connections: FewConnections | None = None

    @property
    def address(self) -> str:
        """The dashboard's address, including the key."""
        return f"http://{HOST}:{self.port}/#key={self.key}"

    async def application(self) -> web.Application:
        """textual-serve's pages behind the check of host names, origins and the key."""
        app: web.Application = await self._make_app()
        app.router.add_get("/page.js", self._script)
        app.middlewares.append(self._guard)
        return app

    def accepting(self, runner: web.AppRunner, bound: socket.socket) -> FewConnections:
        """A small connection limit; connections that did not present the key are dropped first."""
        assert runner.server is not None
        self._connections = FewConnections(runner.server, bound)
        return self._connections

    async def on_startup(self, app: web.Application) -> None:
        """Prints nothing: whoever started the server prints the address."""

    async def on_shutdown(self, app: web.Application) -> None:  # noqa: ARG002 - aiohttp passes it
        """Tell every tab that the server is shutting down."""
        for tab in tuple(self._tabs):
            await tab.close(code=WSCloseCode.GOING_AWAY)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Serve a tab: run a dashboard process until either side ends it."""
        tab = web.WebSocketResponse(heartbeat=_HEARTBEAT_S, protocols=(_PROTOCOL,))
        await tab.prepare(request)
        width, height = (to_int(request.query.get(name, ""), 80) for name in ("width", "height"))
        dashboard = _Dashboard(
            self.command,
            write_bytes=tab.send_bytes,
            write_str=tab.send_str,
            close=tab.close,
            download_manager=self.download_manager,
        )
        self._tabs.add(tab)
        try:
            await dashboard.start(width, height)
            await self._process_messages(tab, dashboard)
        finally:
            self._tabs.discard(tab)
            await dashboard.stop()
        return tab

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Only this machine's names, only this page's own sockets, and the key for everything but the page and its files."""
        origin = request.headers.get("Origin", "")
        if request.host not in self._hosts or (origin and origin.removeprefix("http://") not in self._hosts):
            raise web.HTTPForbidden(text="This dashboard answers pages of this machine only.")
        key = _shown(request)
        resource = request.match_info.route.resource
        if key is None and resource is not None and resource.canonical in _OPEN:
            return await handler(request)
        if not secrets.compare_digest((key or "").encode(), self.key.encode()):
            raise web.HTTPForbidden(text=_LOCKED)
        assert self._connections is not None
        with self._connections.answering(request):
            return await handler(request)

    async def handle_index(self, request: web.Request) -> web.Response:
        """The page with the dashboard in it."""
        page = _file("index.html")
        size = to_int(request.query.get("fontsize", ""), _FONT_SIZE)
        websocket = f"ws://{request.host}/ws"
        text = string.Template(page).substitute(websocket=websocket, size=min(max(size, 6), 72))
        policy = (
            f"default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self'; img-src 'self' data:; "
            f"connect-src 'self' {websocket}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}
        return web.Response(text=text, content_type="text/html", headers=headers)

    async def _script(self, request: web.Request) -> web.Response:  # noqa: ARG002 - aiohttp passes it
        return web.Response(text=_file("page.js"), content_type="text/javascript")


def _shown(request: web.Request) -> str | None:
    """The key from a tab's websocket, or from a page that asks whether its key is still valid; None where there is none."""
    protocol, _, key = request.headers.get("Sec-WebSocket-Protocol", "").partition(",")
    if protocol.strip() == _PROTOCOL:
        return key.strip()
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return key if scheme == "Bearer" else None


def _file(name: str) -> str:
    return resources.files("sapo_desktop.services").joinpath("web", name).read_text("utf-8")


def open_dashboard_socket(port: int) -> socket.socket:
    """A socket on loopback only; port 0: any free one. Raises AppError that names the port if it is taken."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise AppError(
            f"Port {port} cannot be used: something else may have it. Name another: sapo-desktop serve --port {port + 1}"
        ) from error


async def serve_dashboard(bound: socket.socket, say: Callable[[str], None]) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP; then close every tab's dashboard. The node keeps running."""
    server = DashboardServer(bound.getsockname()[1])
    runner = server_runner(await server.application(), "sapo.serve", shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    try:
        async with server.accepting(runner, bound):
            say(f"The dashboard, for you on this machine only: {server.address}")
            say("Ctrl+C ends this; the node goes on.")
            await _until_told()
    finally:
        await runner.cleanup()


async def _until_told() -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        with contextlib.suppress(NotImplementedError, AttributeError):  # Windows: KeyboardInterrupt instead
            loop.add_signal_handler(getattr(signal, name), stop.set)
    await stop.wait()
