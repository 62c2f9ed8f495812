"""A session in lines: follows the feed, prints news, runs what is typed. Nothing is repainted."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from typing import Literal

from sapo_desktop.dashboard.look import plain_text
from sapo_desktop.dashboard.replay import ReplayFeed
from sapo_desktop.dashboard.state import DashboardState, EventFeed, NodeLink, QuitChoice, ReplayRewound, apply_event
from sapo_desktop.errors import CommandFailed
from sapo_desktop.linear import facts
from sapo_desktop.linear.questions import TypedLines
from sapo_swarm.events import EPHEMERAL, Event, RoundFinished

QUIET_S = 0.5
"""The history is loaded when no event has arrived for this long; then the run's position is printed."""
_SNOOZE = 15
News = Literal["few", "rounds", "none"]
KEYS = """\
Type one of these and Enter.
Enter alone: what goes on now.
1: the dashboard: rewards, held-out score, the round, the machine.
2: the swarm: shares, peers, what was taken and why not, who solved what first.
3: the newest rollouts; 3 and a number reads one in full.
4: your models.
5: the log; 5 and a word: its lines with that word.
space: pause, or go on, or start a node that is gone.
F: finish the round, then pause.
z: snooze 15 minutes; z 60 for an hour.
r: run for an hour, ignoring battery, heat and schedule; again ends that.
d: doctor, what works on this machine.
m: train a model on a table of yours.
news few, news rounds, news none: how much is told by itself.
q: leave; it is asked what becomes of the node.
Every verb of sapo-desktop works here without its first word: config, join by node --join, chat, compare, export, rollouts."""
REPLAY_KEYS = """\
In a recording also: space holds it, a square bracket seeks, comma and full stop change the speed."""


class LinearSession:
    """One person at one feed. run() returns how the person left, as the dashboard does."""

    def __init__(
        self,
        feed: EventFeed,
        typed: TypedLines,
        say: Callable[[str], None],
        verb: Callable[[list[str]], Awaitable[int]],
        start: Callable[[], Awaitable[None]] | None = None,
        make_task: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """say: prints one line. verb: runs a command-line verb, which may read from the keyboard. start: starts or finds the
        node; make_task: leads from a table to a model in training, reading from the keyboard; None for a recording."""
        self._make_task = make_task
        self._feed, self._typed, self._print, self._verb, self._start = feed, typed, say, verb, start
        self._state = DashboardState()
        self._news: News = "few"
        self._begun = feed.now()
        self._live = False
        """The history is loaded: a live-only event has arrived. From then on the clock, which may be set back, is ignored."""
        self._told_where = False
        self._timer: asyncio.TimerHandle | None = None
        self._held: list[str] | None = None
        """News that waits for the running verb to end; None if no verb is running."""
        self._caption = ""

    async def run(self) -> QuitChoice | None:
        """Follow the feed and run typed lines until the person leaves. Raises whatever starting the node raises."""
        self._say("sapo-desktop in lines. A question mark and Enter lists what can be typed.")
        following = asyncio.create_task(self._follow())
        obeying = asyncio.create_task(self._obey_all())
        try:
            done, _ = await asyncio.wait({following, obeying}, return_when=asyncio.FIRST_COMPLETED)
            if following in done:
                following.result()
            return await obeying
        finally:
            for task in (following, obeying):
                task.cancel()
            if self._timer is not None:
                self._timer.cancel()
            await asyncio.gather(following, obeying, return_exceptions=True)

    def _say(self, text: str) -> None:
        """Print one line immediately."""
        self._print(facts.speakable_text(plain_text(text, 2000)))

    def _tell(self, text: str) -> None:
        """Print news, after the verb that is running has ended."""
        if self._held is None:
            self._say(text)
        else:
            self._held = [*self._held[-50:], text]

    # Following

    async def _follow(self) -> None:
        if self._start is not None:
            await self._start()
        async for event in self._feed.events():
            if isinstance(event, ReplayRewound):
                self._state, self._live = DashboardState(), False
                continue
            self._live = self._live or (isinstance(event, EPHEMERAL) and event.time >= self._begun)
            before, self._state = self._state, apply_event(self._state, event)
            self._hear(before, event)
            if isinstance(self._feed, ReplayFeed) and self._feed.upto() == len(self._feed.recording):
                self._tell("The recording is at its end")

    def _hear(self, before: DashboardState, event: Event | NodeLink) -> None:
        state = self._state
        if isinstance(event, NodeLink):
            if before.link is None or before.link.sentence != event.sentence:
                self._tell(facts.now_sentence(state, self._feed.now()) if state.gone else event.sentence)
        elif self._live or event.time >= self._begun:
            last = state.log.last
            if state.log is not before.log and last is not None and self._news != "none":
                self._tell(f"{'' if last.level == 'info' else last.level + ': '}{last.text}")
            if isinstance(event, RoundFinished) and self._news == "rounds":
                self._tell(facts.round_sentence(event, state.counts))
        self._follow_caption()
        if not self._told_where and state.run is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(QUIET_S, self._where)

    def _where(self) -> None:
        self._told_where = True
        for line in facts.dashboard_facts(self._state, self._feed.now()):
            self._tell(line)

    def _follow_caption(self) -> None:
        caption = self._feed.caption if isinstance(self._feed, ReplayFeed) else None
        if caption is not None and caption.text != self._caption:
            self._caption = caption.text
            self._tell(caption.text)

    # Typed lines

    async def _obey_all(self) -> QuitChoice | None:
        while (line := await self._typed.line()) is not None:
            if line.strip() in ("q", "quit", "exit"):
                left, choice = await self._leave()
                if left:
                    return choice
            else:
                await self._obey(line)
        return "background" if self._feed.controls else None

    async def _leave(self) -> tuple[bool, QuitChoice | None]:
        if not self._feed.controls or self._state.gone:
            return True, "stop" if self._feed.controls else None
        self._say("Leave? s stops the node, it is saved. b keeps it working. Enter stays here.")
        line = ((await self._typed.line()) or "").strip().lower()
        if line in ("s", "stop"):
            return True, "stop"
        if line in ("b", "background"):
            return True, "background"
        self._say("Staying")
        return False, None

    async def _obey(self, line: str) -> None:
        now, state, word = self._feed.now(), self._state, line.strip()
        head, _, rest = word.partition(" ")
        shown = {
            "1": lambda: facts.dashboard_facts(state, now),
            "2": lambda: facts.swarm_facts(state, now),
            "5": lambda: facts.log_facts(state, now, rest),
        }
        if not line:
            self._say(facts.now_sentence(state, now))
        elif not word:
            await self._toggle()
        elif head in shown:
            for sentence in shown[head]():
                self._say(sentence)
        elif head == "3":
            for sentence in facts.rollout_facts(state, _number(rest)):
                self._say(sentence)
        elif head in ("?", "help"):
            for sentence in KEYS.splitlines() + (
                REPLAY_KEYS.splitlines() if isinstance(self._feed, ReplayFeed) else []
            ):
                self._say(sentence)
        elif head == "news":
            self._choose_news(rest.strip())
        else:
            await self._act(head, rest, word)

    async def _act(self, head: str, rest: str, word: str) -> None:
        """Pass a typed line to the node, the recording or a command-line verb."""
        if isinstance(self._feed, ReplayFeed) and head in ("[", "]", "^", ",", "."):
            self._steer(self._feed, head)
        elif head == "F":
            await self._command("finish", "Finishing this round, then pausing")
        elif head == "z":
            minutes = min(_number(rest) or _SNOOZE, 1440)
            await self._command("snooze", f"Snoozing for {minutes} minutes, then going on", for_s=60 * minutes)
        elif head == "r":
            if self._state.anyway_until > self._feed.now():
                await self._command("obey", "The automatic rules count again")
            else:
                await self._command("run_anyway", "Running for an hour; memory and disk still count", for_s=3600)
        elif word == "m" and self._make_task is not None:
            await self._with_keyboard(self._make_task)
        elif len(head) == 1 and head not in "4d":
            self._say(f"{head} is nothing here. A question mark lists what can be typed")
        else:
            await self._run({"4": "models", "d": "doctor"}.get(word, word))

    def _choose_news(self, wanted: str) -> None:
        if wanted not in ("few", "rounds", "none"):
            self._say(f"News are {self._news} now. There are: news few, news rounds, news none")
            return
        self._news = "few" if wanted == "few" else "rounds" if wanted == "rounds" else "none"
        self._say({"few": "Telling what changes", "rounds": "Telling every round", "none": "Telling nothing"}[wanted])

    def _steer(self, feed: ReplayFeed, key: str) -> None:
        if key in ",.":
            feed.faster(1 if key == "." else -1)
        else:
            feed.seek({"[": -1, "]": 1, "^": 0}[key])
        self._say(feed.badge)

    async def _toggle(self) -> None:
        """Pause, resume or start the node, or hold the recording, as the space key does on the dashboard."""
        if isinstance(self._feed, ReplayFeed):
            self._feed.hold()
            self._say("Held" if self._feed.held else "Going on")
        elif self._state.gone and self._start is not None:
            self._say("Starting the node")
            await self._start()
        elif self._state.absent:
            self._say("The node is starting")
        elif self._state.resumable:
            await self._command("resume", "Going on")
        else:
            await self._command("pause", "Paused until a line with one space is typed again")

    async def _command(self, verb: str, said: str, **body: float) -> None:
        if not self._feed.controls:
            said = "There is no node behind a recording"
        else:
            try:
                await self._feed.command(verb, **body)
            except CommandFailed as error:
                said = str(error)
        self._say(said)

    async def _run(self, words: str) -> None:
        try:
            arguments = shlex.split(words)
        except ValueError:
            self._say("A quotation mark is open in that line")
            return
        await self._with_keyboard(lambda: self._verb(arguments))

    async def _with_keyboard(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do what reads from the keyboard; news wait until it is done."""
        self._held = []
        try:
            await work()
        finally:
            waiting, self._held = self._held, None
            for line in waiting:
                self._say(line)


def _number(text: str) -> int:
    """The typed number; 0 if it is not one."""
    return int(text) if text.strip().isascii() and text.strip().isdigit() and len(text.strip()) < 7 else 0
