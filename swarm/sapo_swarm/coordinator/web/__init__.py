"""The status page at `/`: what a curious person wants to see of a swarm. Server-rendered; a little SSE keeps it live.

Peer names are peer text: they went through safe_text, the template escapes them, the script sets textContent only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from importlib.resources import files

import msgspec
from aiohttp import web
from jinja2 import Environment, StrictUndefined

from sapo_swarm.coordinator.requests import client_address
from sapo_swarm.coordinator.rules import prefix_of
from sapo_swarm.coordinator.server import Coordinator
from sapo_swarm.coordinator.window_stats import Overview, build_overview
from sapo_swarm.protocol.wire import refusals_in_words

CSP = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
EVERY_S = 2.0
MAX_WATCHERS = 64
"""Open event streams at most; the page shows its first figures to everybody else."""
OF_NETWORK = 8
"""Most of these from one /24 or /64 (loopback is exempt)."""
_STATIC = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}


def add_page(app: web.Application, coordinator: Coordinator) -> None:
    """Routes of the page, its event stream and its static files."""
    page = _Page(coordinator)
    app.router.add_get("/", page.show)
    app.router.add_get("/events", page.events, allow_head=False)
    for name in _STATIC:
        app.router.add_get(f"/static/{name}", page.static)


def chart_points(values: tuple[float | int | None, ...], width: float = 600.0, height: float = 100.0) -> str:
    """SVG polyline points of a series that begins at the left edge; gaps are skipped; the top is the maximum."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    step = width / max(1, len(values) - 1)
    places = [(i * step, height - height * value / top) for i, value in enumerate(values) if value is not None]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


class _Page:
    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self._watchers: Counter[str] = Counter()
        folder = files(__package__)
        self._static = {name: (folder / name).read_bytes() for name in _STATIC}
        environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string((folder / "page.html.j2").read_text())

    async def show(self, _request: web.Request) -> web.Response:
        view = await self._overview()
        swarm = self.coordinator.swarm
        html = self._template.render(
            swarm=swarm,
            view=view,
            refused=refusals_in_words(dict(view.refused)),
            rounds=chart_points(view.rounds),
            rewards=chart_points(view.rewards),
            latest_reward=next((r for r in reversed(view.rewards) if r is not None), None),
            peak_reward=max((reward for reward in view.rewards if reward is not None), default=None),
            top=max((count for _, count in view.tasks), default=1),
        )
        return web.Response(text=html, content_type="text/html", headers=_headers())

    async def static(self, request: web.Request) -> web.Response:
        name = request.path.rsplit("/", 1)[-1]
        headers = _headers() | {"Cache-Control": "max-age=300"}
        return web.Response(body=self._static[name], content_type=_STATIC[name], charset="utf-8", headers=headers)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events, one Overview as JSON each."""
        network = prefix_of(client_address(request, self.coordinator.settings.trust_proxy))
        if self._watchers.total() >= MAX_WATCHERS or (network and self._watchers[network] >= OF_NETWORK):
            raise self.coordinator.admission.busy("busy", "Enough people are watching live.", 30.0)
        response = web.StreamResponse(
            headers=_headers() | {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        self._watchers[network] += 1
        # A stream lives long: it must not count as a request being served.
        self.coordinator.metrics.in_flight -= 1
        try:
            await response.prepare(request)
            while not self.coordinator.admission.stopping:
                body = msgspec.json.encode(await self._overview())
                await response.write(b"data: " + body + b"\n\n")
                await asyncio.sleep(EVERY_S)
        except ConnectionError:
            pass  # the reader closed the page
        finally:
            self._watchers[network] -= 1
            if not self._watchers[network]:
                del self._watchers[network]
            self.coordinator.metrics.in_flight += 1
        return response

    async def _overview(self) -> Overview:
        return build_overview(await self.coordinator.stats(), self.coordinator.clock())


def _headers() -> dict[str, str]:
    return {
        "Content-Security-Policy": CSP,
        "Referrer-Policy": "no-referrer",
        "X-Frame-Options": "DENY",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
