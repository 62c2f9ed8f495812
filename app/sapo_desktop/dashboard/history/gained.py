"""What came from other nodes into this model's training, and where it stood before."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from sapo_swarm.events import Evaluated, Event, RoundFinished


class Gained(msgspec.Struct, frozen=True):
    """batches: groups in all training batches so far, external: those of them that came from other nodes. before: the last
    held-out result from before the first external group."""

    batches: int = 0
    external: int = 0
    before: Evaluated | None = None

    def after(self, event: Event) -> Gained:
        """With what the event adds."""
        if isinstance(event, RoundFinished):
            batch = event.local_groups + event.external_groups
            return replace(self, batches=self.batches + batch, external=self.external + event.external_groups)
        if isinstance(event, Evaluated) and not self.external:
            return replace(self, before=event)
        return self
