"""Screen 2: members, exchange, rejections with reasons, and the value of external groups. Without a swarm, it says how to
join one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from sapo_backends.errors import size_text
from sapo_desktop.dashboard.look import (
    GlyphSet,
    draw_bar,
    fit_width,
    format_count,
    format_share,
    plain_text,
    shorten_phrases,
    wrap_text,
)
from sapo_desktop.dashboard.screens.dashboard import (
    NO_MODEL,
    empty_chart_text,
    milestone_marks,
    share_lines,
    share_title,
)
from sapo_desktop.dashboard.screens.swarm.controls import SwarmControls, name_of
from sapo_desktop.dashboard.screens.swarm.trail import in_a_line, trail_table
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets.chart import Chart
from sapo_desktop.dashboard.widgets.frame import Key, Panel
from sapo_desktop.services.swarms.trial import MEANINGS, ROUNDS, contribution_rows
from sapo_swarm.events import SwarmUpdated
from sapo_swarm.node.clock import format_age
from sapo_swarm.protocol.wire import refusals_in_words
from sapo_swarm.resolve_run import TRIAL_EXTERNAL_GROUPS

# The value of external groups here, and the age of what is shown.

STALE_S = 60.0
"""Seconds from which the swarm news of a paused node is marked with its age."""


def as_it_was(state: DashboardState, now: float) -> str:
    """The prefix for stale swarm news: no node is reporting, or a paused one has not reported for STALE_S; else ""."""
    if state.swarm is None or not (state.absent or (state.paused and now - state.swarm.time > STALE_S)):
        return ""
    return f"As it was {format_age(now - state.swarm.time)} ago: "


def from_others(state: DashboardState) -> str:
    """How many of the groups this model was trained on are external; "" if it was not trained yet."""
    gained = state.gained
    if not gained.batches:
        return ""
    return f"{gained.external:,} of {gained.batches:,} groups in my batches so far came from others"


def improved_tasks_sentence(state: DashboardState) -> str:
    """Tasks whose held-out interval lies entirely above the one from before the first external group. If nothing
    changed, one of nine tasks does so in at most about 3 of 100 evaluations."""
    before, now = state.gained.before, state.latest
    if before is None or now is None or not state.gained.external:
        return ""
    old = {score.task: score for score in before.tasks}
    pairs = [(score, old[score.task]) for score in now.tasks if score.task in old]
    rises = [(score.pass_at_1 - was.pass_at_1, score) for score, was in pairs if score.low > was.high]
    up = sorted(rises, key=lambda pair: -pair[0])
    if not up:
        return "No task's held-out score has risen measurably since the first of them"
    named = ", ".join(f"{plain_text(score.task, 40)} {100 * rise:+.0f} points" for rise, score in up[:4])
    more = f" and {len(up) - 4} more" if len(up) > 4 else ""
    return f"Held-out since the first of them, cause not shown: {named}{more}"


def on_trial(state: DashboardState) -> tuple[str, ...]:
    """The lines on a trial, most important first: its progress; once its rounds are done, the outcome, the question whether to
    stay, and the change of the held-out score. Empty without a trial."""
    trial = state.trial
    if state.silo or not trial.name:
        return ()
    if not trial.asks:
        return (
            f"Trial, {trial.rounds} of {ROUNDS} rounds: strict rules, {TRIAL_EXTERNAL_GROUPS} external groups at most",
        )
    rise = improved_tasks_sentence(state) or "No held-out score from before and after is here to compare"
    return (f"Trial, {ROUNDS} rounds done: {trial.sentence()}", "Stay? s stays, with normal settings; l leaves", rise)


# The screen and its panels.

SWARMS = (
    "In a swarm, nodes share the text of their attempts and learn from each other's. Each node scores what it "
    "receives with its own verifier; no model, weight or file leaves this machine, and nobody can change your limits. "
    "Of external attempts a node trains only on those that did better than the rest of their group. Among four "
    "equal small models two and a half minutes of sharing changed nothing measurable; beside a larger one, a small model that "
    "had nothing to learn from alone went from 0 to 25 %. Longer runs are not measured yet."
)
WAYS = (("Find", "f", "directory"), ("Join", "j", "node --join INVITE"), ("Host", "h", "coordinator"))
"""(action, key, verb) for each way into a swarm."""
SEEN = (
    "The invite is one line of text. Others see a random node id, the name you chose and the base's name; the host also "
    "sees this machine's network address."
)
ALONE, WAITING = "This node trains alone (silo).", "Waiting for the first exchange with the coordinator."
FIRST = "It comes with the first round; until then the node works alone."
AHA = "First solved "
LOW = 8
"""Up to this many rows, the exchange panel shows one trail in a line instead of having the trail panel beside it."""
MINE = " (me)"
"""Follows this node's name among the peers."""
UNHEARD = "nothing taken"
"""Replaces a peer's model if all of its groups are rejected; the exchange panel says why."""


class SwarmScreen(SwarmControls):
    """Screen 2: overview, peers, Aha trail, exchange, and the keys of SwarmControls."""

    def body(self) -> Iterable[Widget]:
        """Overview, peers, exchange, and on tall terminals the Aha trail."""
        yield Panel(partial(swarm_overview, keys=self.actions is not None), self.glyphs, "Swarm", id="overview")
        with VerticalScroll(id="peers", classes="box", can_focus=True):
            yield Static("", id="peer-rows", markup=False)
        yield Panel(trail_table, self.glyphs, "First solved", id="trail")
        yield Panel(exchange_summary, self.glyphs, "Exchange", id="exchange")
        yield Chart("Shares", self.glyphs, id="shares")

    def own_keys(self, state: DashboardState) -> list[Key]:
        """Pause, swarm keys, screens."""
        return [
            *self.pause_keys(state),
            *self.swarm_keys(state),
            *([("w", "first solved", "screen.trail")] if state.trails else []),
            ("1-5", "screens", "app.next_screen"),
        ]

    def update(self, state: DashboardState, now: float) -> None:
        """Update the panels."""
        alone = state.swarm is None
        self.set_class(alone, "-alone")
        self.set_class(bool(on_trial(state)), "-trial")
        self.set_class(state.swarm is not None and len(state.swarm.sentence) > self.size.width - 4, "-told")
        self.query_one("#overview", Panel).border_subtitle = self._waiting()
        if self.big and not alone:
            lines, happened = share_lines(state), milestone_marks(state)
            self.query_one(Chart).show(
                lines, happened, empty_chart_text(state, now), share_title(state), state.figures.clock, state.counts
            )
        for name in ("overview", "trail", "exchange"):
            self.query_one(f"#{name}", Panel).show(state, now)
        if state.swarm is not None:
            box = self.query_one("#peers", VerticalScroll)
            title = f"Peers ({len(state.swarm.peers)})"
            box.border_title = Content.assemble((title, "bold"), (f"  {as_it_was(state, now)}".rstrip(": "), "$muted"))
            rows = peer_rows(state.swarm, max(box.size.width - 4, 40), self.glyphs)
            self.query_one("#peer-rows", Static).update(rows)

    def _waiting(self) -> Content:
        """The line below the overview: who is waiting for approval, else that a swarm is hosted here."""
        if not self.guests:
            return Content.styled(
                "hosted on this machine: h shows the invite, or ends it" if self.hosts else "", "$muted"
            )
        first, more = self.guests[0], len(self.guests) - 1
        who = f"{name_of(first)} ({plain_text(first.model, 20)}){f' and {more} more' if more else ''}"
        return Content.styled(f"{who} {'wait' if more else 'waits'} to be let in: a", "bold $warning")


def swarm_overview(
    state: DashboardState, now: float, width: int, height: int, glyphs: GlyphSet, keys: bool = True
) -> Content:
    """Connection, this node's share and uptake; without a swarm, how to join. keys: whether there are keys for that."""
    swarm = state.swarm
    if swarm is None:
        return _without(state, keys)
    was = as_it_was(state, now)
    style = "bold $success" if swarm.connected and not was else "bold $warning"
    sentence = wrap_text(was + plain_text(swarm.sentence, 400), width)[: max(height - 2, 1)]
    where = f"  {plain_text(swarm.coordinator, 100)}" if swarm.connected and len(sentence) == 1 else ""
    rows = [
        Content.assemble(("\n".join(sentence), style), (where, "$muted")),
        _row(
            ("nodes", format_count(swarm.nodes)),
            ("rounds/s, all", f"{swarm.rounds_per_s:.2f}"),
            ("window", format_age(swarm.window)),
        ),
        _row(*contribution_rows(swarm)),
    ]
    if trial := on_trial(state):
        rows += [Content.styled(shorten_phrases(line, width), "bold $warning") for line in trial]
    if state.external_off and height > len(sentence) + 2:
        rows.insert(1, Content.styled("External groups are off · x takes them again · 5 says why", "bold $warning"))
    if height > len(rows) + len(sentence) - 1:
        rows.append(Content.styled(shorten_phrases(" · ".join(MEANINGS.values()), width), "$muted"))
    return Content("\n").join(rows)


def _without(state: DashboardState, keys: bool) -> Content:
    """The text without a swarm: why there is none, and how to join."""
    if state.absent or state.run is None:
        return Content.styled(f"{state.absence}." if state.absent else NO_MODEL, "bold")
    if not state.silo:
        return Content("\n\n").join([Content.styled(WAITING, "bold"), Content.styled(FIRST, "$muted")])
    ways = [f"{do} one:   {f'{key}, or ' * keys}in a terminal: sapo-desktop {verb}" for do, key, verb in WAYS]
    rows = [(ALONE, "bold"), (SWARMS, ""), *((way, "$accent") for way in ways), (SEEN, "$muted")]
    return Content("\n\n").join(Content.styled(line, style) for line, style in rows)


def _row(*pairs: tuple[str, str]) -> Content:
    return Content("").join(
        Content.assemble((f"{label:<16}", "$muted"), (f"{value:<9}", "bold")) for label, value in pairs
    )


def peer_rows(swarm: SwarmUpdated, width: int, glyphs: GlyphSet) -> Content:
    """The leaderboard, largest share first, with this node's row marked. Names and models are untrusted peer text."""
    if not swarm.peers:
        none = "Nobody else is here yet." if swarm.nodes < 2 else "The list of them comes in a moment."
        return Content.styled(none if swarm.connected else "Not known while the coordinator is away.", "$muted")
    name, model = (22, 18) if width >= 90 else (16, 14)
    head = f"{'name':<{name}} {'model':<{model}} {'groups':>7} {'share':>7} {'uptake':>7} {'seen':>7}"
    rows = [Content.styled(head, "$muted")]
    for peer in sorted(swarm.peers, key=lambda peer: -peer.share):
        cells = (
            format_count(peer.groups),
            format_share(peer.share, 1),
            format_count(peer.uptake),
            format_age(peer.seen_s),
        )
        figures = " ".join(f"{cell:>7}" for cell in cells)
        room = max(min(width - len(head) - 2, 20), 0)
        mine = bool(swarm.node) and peer.node == swarm.node
        unheard = peer.node in swarm.unheard
        called = plain_text(peer.name, 60) or plain_text(peer.node[:8])
        rows.append(
            Content.assemble(
                (fit_width(fit_width(called, name - len(MINE)).rstrip() + MINE, name), "bold")
                if mine
                else fit_width(called, name),
                " ",
                (
                    fit_width(UNHEARD if unheard else plain_text(peer.model, 60), model),
                    "$error" if unheard else "$muted",
                ),
                f" {figures}  ",
                draw_bar(peer.share, room, glyphs, "$chart-local") if room >= 6 else "",
            )
        )
    return Content("\n").join(rows)


def exchange_summary(state: DashboardState, now: float, width: int, height: int, glyphs: GlyphSet) -> Content:
    """How many groups were made, accepted and rejected, and why."""
    swarm = state.swarm
    if swarm is None:
        return Content("")
    came, rise = from_others(state), improved_tasks_sentence(state)
    rows = [Content.styled(shorten_phrases(came, width), "bold")] if came else []
    rows += [Content.styled(shorten_phrases(rise, width), "$muted")] if rise else []
    if height <= LOW and (aha := in_a_line(state, width - len(AHA))):
        rows.append(Content.assemble((AHA, "bold $accent"), aha))
    rows.append(_row(("groups made", format_count(swarm.made)), ("accepted", format_count(swarm.accepted))))
    refused = _reasons("sent, not taken", refusals_in_words(swarm.refused, swarm.made), width, 2 if height > 8 else 1)
    none = "all were taken" if state.gained.external else "nothing came in yet"
    room = max(height - len(rows) - len(refused) - 1, 1)
    rows += [*_reasons("received, not taken", refusals_in_words(swarm.rejected), width, room, none), *refused]
    rows.append(_traffic(state, swarm))
    return Content("\n").join(rows)


def _reasons(label: str, found: list[str], width: int, lines: int, none: str = "all were taken") -> list[Content]:
    """The most frequent reasons on at most `lines` lines, without cutting one; the rest are counted. none: the text if
    there are no reasons."""
    shown = len(found)
    wrapped = wrap_text(f"{label}: {' · '.join(found) or none}", width)
    while len(wrapped) > lines and shown > 1:
        shown -= 1
        more = len(found) - shown
        last = f"{more} more reason{'s' if more > 1 else ''}"
        wrapped = wrap_text(f"{label}: {' · '.join([*found[:shown], last])}", width)
    first, *rest = wrapped[:lines]
    return [Content.assemble((label, "$muted"), first[len(label) :]), *map(Content, rest)]


def _traffic(state: DashboardState, swarm: SwarmUpdated) -> Content:
    last = state.round
    if last is None:
        return Content("")
    drew = f"took {last.external_groups} of up to {last.external_wanted} · " if last.external_wanted else ""
    traffic = f"sent {size_text(last.bytes_sent)} · received {size_text(last.bytes_received)}"
    return Content.assemble(("last round: ", "$muted"), drew + traffic)
