"""Screen 2: who takes part, what is exchanged, what was rejected and why. Alone, it says how that changes."""

from __future__ import annotations

from collections.abc import Iterable

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from sapo_desktop.dashboard.look.glyphs import Glyphs
from sapo_desktop.dashboard.look.show import age, bar, count, fit, percent, plain
from sapo_desktop.dashboard.screens.swarm.controls import SwarmControls
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets.keybar import Key
from sapo_desktop.dashboard.widgets.panel import Panel
from sapo_swarm.events import Peer, SwarmUpdated

SILO = (
    ("This node trains alone (silo).", "bold"),
    (
        "In a swarm, nodes share the text of their attempts and learn from each other's. Each node scores what it "
        "receives with its own verifier; no model, weight or file leaves this machine, and nobody can change your limits. "
        "It helps most where success is rare: what one node finds, the others learn from. Of external attempts a node trains "
        "only on those that did better than the rest of their group.",
        "",
    ),
    ("Join one:   j, or in a terminal: sapo-desktop node --join INVITE", "$accent"),
    ("Host one:   h, or in a terminal: sapo-desktop coordinator", "$accent"),
    (
        "The invite is one line of text. What others see of you: a random node id, the name you chose, the model's name.",
        "$muted",
    ),
)


class SwarmScreen(SwarmControls):
    """Screen 2: overview, peers, exchange, and the keys of SwarmControls."""

    def body(self) -> Iterable[Widget]:
        """Overview, peers, exchange."""
        yield Panel(overview, self.glyphs, "Swarm", id="overview")
        with VerticalScroll(id="peers", classes="box", can_focus=True):
            yield Static("", id="peer-rows", markup=False)
        yield Panel(exchange, self.glyphs, "Exchange", id="exchange")

    def own_keys(self, state: DashboardState) -> list[Key]:
        """Pause, swarm keys, screens."""
        return [
            *self.pause_keys(state),
            *self.swarm_keys(state),
            ("1-5", "screens", "app.next_screen"),
        ]

    def update(self, state: DashboardState, now: float) -> None:
        """Give the panels what they show."""
        alone = state.swarm is None
        self.set_class(alone, "-alone")
        for name in ("overview", "exchange"):
            self.query_one(f"#{name}", Panel).show(state, now)
        if state.swarm is not None:
            box = self.query_one("#peers", VerticalScroll)
            box.border_title = Content.styled(f"Peers ({len(state.swarm.peers)})", "bold")
            rows = peer_rows(state.swarm.peers, max(box.size.width - 4, 40), self.glyphs)
            self.query_one("#peer-rows", Static).update(rows)


def overview(state: DashboardState, now: float, width: int, height: int, glyphs: Glyphs) -> Content:
    """Connection, my share and uptake; alone, how to join."""
    swarm = state.swarm
    if swarm is None:
        text = (
            SILO
            if state.silo
            else (
                ("Waiting for the first exchange with the coordinator.", "bold"),
                ("It comes with the first round; until then the node works alone.", "$muted"),
            )
        )
        return Content("\n\n").join(Content.styled(line, style) for line, style in text)
    window = age(swarm.window)
    style = "bold $success" if swarm.connected else "bold $warning"
    rows = [
        Content.assemble((plain(swarm.sentence, 200), style), (f"  {plain(swarm.coordinator, 100)}", "$muted")),
        _row(("nodes", count(swarm.nodes)), ("rounds/s, all", f"{swarm.rounds_per_s:.2f}"), ("window", window)),
        _row(
            ("my share", percent(swarm.share, 1)),
            ("uptake", count(swarm.uptake)),
            ("external", percent(swarm.external_share)),
        ),
        Content.styled(
            f"share: my accepted groups of all accepted in {window}; uptake: times others sampled mine; "
            "external: part of the last batches from other nodes",
            "$muted",
        ),
    ]
    if state.external_off:
        rows.insert(1, Content.styled("External groups are off · x takes them again · 5 says why", "bold $warning"))
    return Content("\n").join(rows)


def _row(*pairs: tuple[str, str]) -> Content:
    return Content("").join(
        Content.assemble((f"{label:<16}", "$muted"), (f"{value:<9}", "bold")) for label, value in pairs
    )


def peer_rows(peers: tuple[Peer, ...], width: int, glyphs: Glyphs) -> Content:
    """The leaderboard, the largest share first. Names and models are peer text."""
    if not peers:
        return Content.styled("Nobody else is here yet.", "$muted")
    name, model = (22, 18) if width >= 90 else (16, 14)
    head = f"{'name':<{name}} {'model':<{model}} {'groups':>7} {'share':>7} {'uptake':>7} {'seen':>7}"
    rows = [Content.styled(head, "$muted")]
    for peer in sorted(peers, key=lambda peer: -peer.share):
        figures = f"{count(peer.groups):>7} {percent(peer.share, 1):>7} {count(peer.uptake):>7} {age(peer.seen_s):>7}"
        room = max(min(width - len(head) - 2, 20), 0)
        rows.append(
            Content.assemble(
                fit(plain(peer.name, 60) or peer.node[:8], name),
                " ",
                (fit(plain(peer.model, 60), model), "$muted"),
                f" {figures}  ",
                bar(peer.share, room, glyphs, "$chart-local") if room >= 6 else "",
            )
        )
    return Content("\n").join(rows)


def exchange(state: DashboardState, now: float, width: int, height: int, glyphs: Glyphs) -> Content:
    """What was made, taken and refused, and why."""
    swarm = state.swarm
    if swarm is None:
        return Content("")
    rows = [
        _row(("made", count(swarm.made)), ("accepted", count(swarm.accepted)), ("used by others", count(swarm.uptake))),
        _reasons("received and rejected", swarm.rejected, "nothing was rejected"),
        _reasons("sent and refused", swarm.refused, "nothing was refused"),
        _traffic(state, swarm),
    ]
    return Content("\n").join(rows)


def _reasons(label: str, reasons: dict[str, int], none: str) -> Content:
    found = [f"{plain(name, 40).replace('_', ' ')} {number:,}" for name, number in sorted(reasons.items()) if number]
    return Content.assemble((f"{label}: ", "$muted"), " · ".join(found) or none)


def _traffic(state: DashboardState, swarm: SwarmUpdated) -> Content:
    last = state.round
    if last is None:
        return Content("")
    drew = f"took {last.external_groups} of up to {last.external_wanted} · " if last.external_wanted else ""
    traffic = f"sent {last.bytes_sent / 1e3:.1f} kB · received {last.bytes_received / 1e3:.1f} kB"
    return Content.assemble(("last round: ", "$muted"), drew + traffic)
