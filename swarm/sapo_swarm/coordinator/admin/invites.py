"""Making invites: the token leaves this process once, its hash stays in the store."""

from __future__ import annotations

import time

from sapo_swarm.coordinator.domain.records import InviteRecord
from sapo_swarm.coordinator.store.base import Store
from sapo_swarm.protocol.invite import new_token, token_hash


async def new_invite(store: Store, label: str, hours: float, uses: int) -> tuple[InviteRecord, str]:
    """The stored record and the token, of which only the hash is stored. hours, uses: 0 = unlimited."""
    token, now = new_token(), time.time()
    expires = now + hours * 3600 if hours else 0.0
    record = InviteRecord(hash=token_hash(token), label=label, created=now, expires=expires, max_uses=uses)
    await store.add_invite(record)
    return record, token
