"""Which sources send much that this node's model would hardly ever write: judged by their newest groups together.

A floor under single groups leaves an attacker those that pass it, and one of them a round is all that a batch takes of a
source. Of text with shuffled words half a source's groups fall below the floor, of honest text none
(docs/decisions/0009-likelihood.md), so a few that do are enough to refuse the others too. Judging goes on meanwhile: a source
whose newest groups are likely again is heard again. Pure bookkeeping.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

NEWEST = 20
"""Groups of a source that are looked at together;"""
MOST = 3
"""and how many of them may be unlikely."""
SOURCES = 8192
"""Sources remembered; the one that was quiet longest starts anew."""


@dataclass(slots=True)
class UnlikelySources:
    """newest: of each source, whether its newest groups were below the floor, the newest last."""

    newest: OrderedDict[str, deque[bool]] = field(default_factory=OrderedDict)

    def judged(self, node: str, unlikely: bool) -> None:
        """Register a group of the source."""
        newest = self.newest.setdefault(node, deque(maxlen=NEWEST))
        self.newest.move_to_end(node)
        newest.append(unlikely)
        if len(self.newest) > SOURCES:
            self.newest.popitem(last=False)

    def allows(self, node: str) -> bool:
        """Few of the source's newest groups were below the floor."""
        return sum(self.newest.get(node, ())) <= MOST
