"""A thread that asks the index, so that no key waits for a disk; between two questions it takes in more of the journal."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from sapo_desktop.dashboard.history.groups.index import NEWEST, Direction, GroupIndex
from sapo_desktop.dashboard.history.groups.query import GroupFilter
from sapo_swarm.events import GroupRecorded
from sapo_swarm.node.journal import JournalError

PAGE = 60
"""Groups on a page."""
IDLE_S = 1.0
"""Seconds between two looks whether the journal has changed."""
_TELL_S = 0.25
"""A first page is told again while the index grows, this often."""


@dataclass(frozen=True)
class Wish:
    """A page of the groups that fit: below (older) or above the number `start`; none above `upto`."""

    filter: GroupFilter = field(default_factory=GroupFilter)
    start: int = NEWEST
    direction: Direction = "older"
    upto: int = NEWEST

    @property
    def first(self) -> bool:
        """It is the page of the newest groups, which changes as the journal grows."""
        return self.start == NEWEST and self.direction == "older"


@dataclass(frozen=True)
class Answer:
    """groups: newest first. total: all that fit. indexed of of: how far the index is. tasks: known ones. problem: "" none."""

    wish: Wish
    groups: tuple[GroupRecorded, ...] = ()
    total: int = 0
    indexed: int = 0
    of: int = 0
    tasks: tuple[str, ...] = ()
    problem: str = ""


class _Nothing:
    """No wish came."""


class GroupReader:
    """Answers the newest wish only: whoever types on does not wait for what was typed before."""

    def __init__(self, open_index: Callable[[], GroupIndex], told: Callable[[Answer], None]) -> None:
        """open_index, told: called in the reader's thread."""
        self._open, self._told = open_index, told
        self._wishes: queue.SimpleQueue[Wish | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)
        self._thread.start()

    def ask(self, wish: Wish) -> None:
        """Answered as soon as may be, unless another wish comes first."""
        self._wishes.put(wish)

    def close(self) -> None:
        """End the thread, after what it is doing."""
        self._wishes.put(None)

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def _run(self) -> None:
        """An index that does not open (a full disk, say) is tried again from time to time."""
        wish: Wish | None = Wish()
        while wish is not None:
            try:
                index = self._open()
            except JournalError as error:
                self._told(Answer(wish, problem=str(error)))
                newer = self._next(IDLE_S)
                wish = wish if isinstance(newer, _Nothing) else newer
                continue
            try:
                return self._serve(index, wish)
            finally:
                index.close()

    def _serve(self, index: GroupIndex, wish: Wish) -> None:
        growing, told_at, pause = True, 0.0, 0.0
        asked: Wish | None = wish
        while asked is not None:
            wish = asked
            self._answer(index, wish)
            told_at = time.monotonic()
            while isinstance(newer := self._next(pause), _Nothing):
                began = time.monotonic()
                grew, growing = self._follow(index, growing)
                pause = time.monotonic() - began if growing else IDLE_S
                done = grew and not growing
                if grew and wish.first and (done or time.monotonic() - told_at > _TELL_S):
                    self._answer(index, wish)
                    told_at = time.monotonic()
            asked = newer

    def _next(self, wait: float) -> Wish | _Nothing | None:
        """The newest wish, None at the end, or nothing after so many seconds."""
        newest: Wish | _Nothing | None = _Nothing()
        with suppress(queue.Empty):
            newest = self._wishes.get(timeout=max(wait, 0.001))
            while newest is not None:
                newest = self._wishes.get_nowait()
        return newest

    def _follow(self, index: GroupIndex, growing: bool) -> tuple[bool, bool]:
        """(something changed, there is more to take in)."""
        try:
            if not growing:
                changed = index.changed()
                return changed, changed and index.step()
            return True, index.step()
        except JournalError:  # the journal is being replaced, or another window holds the index: at the next look
            return False, False

    def _answer(self, index: GroupIndex, wish: Wish) -> None:
        try:
            page = index.page(wish.filter, PAGE, wish.start, wish.direction, wish.upto)
            groups = tuple(event for _, event in index.source.read(page.seqs) if event is not None)
            self._told(Answer(wish, groups, page.total, page.indexed, page.of, tuple(index.tasks())))
        except JournalError as error:
            self._told(Answer(wish, problem=str(error)))
