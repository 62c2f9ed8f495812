"""What the Redis store keeps of tasks of members' own: an offer and its content for each name."""

from __future__ import annotations

from sapo_swarm.coordinator.store.redis_link import pack, reaching, read, wait
from sapo_swarm.coordinator.store.redis_members import RedisMembers
from sapo_swarm.protocol.task_offer import TaskOffer, TaskUpload


class RedisTasks(RedisMembers):
    """The part of RedisStore that is about tasks. Offers lie apart from contents: they are read often."""

    async def put_task(self, task: TaskUpload) -> None:
        """See Store."""
        async with reaching():
            await wait(self._server.hset(self._key("tasks"), task.offer.name, pack(task.offer)))
            await wait(self._server.hset(self._key("task bodies"), task.offer.name, pack(task)))
            await self._replicated()

    async def drop_task(self, name: str) -> bool:
        """See Store."""
        async with reaching():
            known = await wait(self._server.hdel(self._key("tasks"), name))
            await wait(self._server.hdel(self._key("task bodies"), name))
            await self._replicated()
        return bool(known)

    async def tasks(self) -> list[TaskOffer]:
        """See Store."""
        async with reaching():
            rows = await wait(self._server.hgetall(self._key("tasks")))
        return sorted((read(raw, TaskOffer) for raw in rows.values()), key=lambda offer: offer.name)

    async def task(self, hash: str) -> TaskUpload | None:
        """See Store."""
        name = next((offer.name for offer in await self.tasks() if offer.hash == hash), None)
        if name is None:
            return None
        async with reaching():
            raw = await wait(self._server.hget(self._key("task bodies"), name))
        found: TaskUpload | None = None if raw is None else read(raw, TaskUpload)
        return found if found is not None and found.offer.hash == hash else None
