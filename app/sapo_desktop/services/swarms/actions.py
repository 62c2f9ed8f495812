"""Screen 2's actions on this home: invites, the node's restart, the coordinator in the background."""

from __future__ import annotations

import asyncio

from sapo_desktop import settings
from sapo_desktop.errors import USER_ERRORS, AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.swarms.interface import HostedSwarm, OfferedTask, PendingNode, SwarmDirectory

INVITE_HOURS, INVITE_USES = 168.0, 10


class HomeActions:
    """Every method raises USER_ERRORS. Network libraries are imported only when needed."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def hosting(self) -> bool:
        """Whether a coordinator of this home runs."""
        from sapo_desktop.services.swarms import hosting

        return hosting.find_coordinator(self._home) is not None

    async def join(self, invite: str, listed: bool = False) -> str:
        """Join, and keep the invite unless it is refused; the node restarts in that swarm after its round. listed: the invite
        came from a directory. Returns a sentence."""
        from sapo_desktop.services.models import control
        from sapo_desktop.services.swarms import membership

        home = self._home
        loaded, model = settings.load_settings(home.settings), await control.current_model(home)
        config = model.config if model else loaded.run
        typed = membership.parse_typed_invite(invite)
        await asyncio.to_thread(membership.require_shared, config, typed.swarm)
        await membership.request_admission(home, typed, loaded.person.name, config.model)
        await asyncio.to_thread(membership.save_invite, invite, home.invite, listed)
        await asyncio.to_thread(settings.write_setting, home.settings, "swarm.join", "true")
        await control.restart_node(home)
        return "The node goes on in the swarm, with the same model and its weights"

    async def host(self, everybody: bool, approve: bool = False) -> HostedSwarm:
        """A coordinator in the background (the running one, if any) and a fresh invite. approve: new nodes wait for
        approval."""
        from sapo_desktop.services.swarms import hosting
        from sapo_swarm.loopback import is_loopback

        flags = ["--host", "0.0.0.0"] if everybody else []
        state = await hosting.start_coordinator(self._home, [*flags, *(["--approve"] if approve else [])])
        async with state.client() as admin:
            invites = await admin.new_invite("from the dashboard", INVITE_HOURS, INVITE_USES)
        ordered = sorted(invites, key=lambda invite: is_loopback(invite.host))
        return HostedSwarm(state.name, tuple(map(str, ordered)), f"{state.access().url}/")

    async def waiting(self) -> tuple[PendingNode, ...]:
        """Nodes waiting for this host's approval, the longest-waiting first; none where no coordinator runs or it does not
        answer."""
        from sapo_desktop.services.swarms import hosting
        from sapo_swarm.protocol.client import CoordinatorError

        state = await asyncio.to_thread(hosting.find_coordinator, self._home)
        if state is None:
            return ()
        try:
            async with state.client() as admin:
                nodes = await admin.waiting()
        except (CoordinatorError, OSError):
            return ()
        return tuple(PendingNode(one.node, one.name, one.model) for one in sorted(nodes, key=lambda one: one.joined))

    async def let_in(self, guest: PendingNode) -> str:
        """Let the node take part; returns a sentence."""
        from sapo_desktop.services.swarms import hosting

        async with hosting.require_coordinator(self._home).client() as admin:
            await admin.approve(guest.node)
        return f"{guest.name or guest.node[:8]} takes part from its next exchange on"

    async def stop_hosting(self) -> str:
        """Stop the coordinator of this home; returns a sentence."""
        from sapo_desktop.services.swarms import hosting

        await hosting.stop_coordinator(self._home)
        return "The coordinator has stopped; members train on alone until it is back"

    async def leave(self) -> str:
        """Leave the swarm and forget its invite; returns a sentence."""
        from sapo_desktop.services.swarms.membership import leave_swarm

        return await leave_swarm(self._home)

    async def stay(self) -> str:
        """End the trial: normal settings after the round. Returns a sentence."""
        from sapo_desktop.services.swarms.membership import stay_in_swarm

        return await stay_in_swarm(self._home)

    async def directories(self, fresh: bool = False) -> tuple[SwarmDirectory, ...]:
        """What the directories in the settings list. fresh: ask their hosts now, however recently that was done."""
        from sapo_desktop.services.swarms import directories

        return await directories.read_directories(self._home, fresh)

    async def wrong_with(self, invite: str) -> str:
        """Ask the coordinator whether this invite still admits a node: why not, "" where it does."""
        from sapo_desktop.services.swarms import membership
        from sapo_swarm.protocol.client import NodeClient
        from sapo_swarm.protocol.identity import Identity

        try:
            parsed = membership.parse_typed_invite(invite)
            async with NodeClient(parsed, Identity.generate()) as client:
                info = await client.info()
        except USER_ERRORS as error:
            return str(error)
        if info.swarm != parsed.swarm:
            return "Another swarm is at that address by now: read the list again."
        return "" if info.open or parsed.token else "That swarm is by invite only by now: ask its host."

    async def add_directory(self, line: str) -> None:
        """Search this directory too from now on."""
        from sapo_desktop.services.swarms import directories

        await asyncio.to_thread(directories.follow_directory, self._home, line)

    async def offered(self) -> tuple[OfferedTask, ...]:
        """Tasks of the swarm that the person has not accepted yet."""
        from sapo_desktop.services.swarms import sharing
        from sapo_desktop.services.swarms.membership import offer_status
        from sapo_swarm.tasks.own.spec import BadTask

        tasks: list[OfferedTask] = []
        async with sharing.member_client(self._home) as client:
            for offer in await sharing.list_task_offers(client, self._home):
                if offer_status(offer, client.invite.swarm) in ("accepted", "shared"):
                    continue
                try:
                    lines = await asyncio.to_thread(sharing.preview_offer, offer, await client.task(offer))
                    tasks.append(OfferedTask(offer.name, offer.hash, tuple(lines)))
                except BadTask as error:
                    tasks.append(OfferedTask(offer.name, offer.hash, dropped=str(error)))
        return tuple(tasks)

    async def accept(self, task: OfferedTask) -> str:
        """Store the task as shown, and train on it besides the model's other tasks; returns a sentence."""
        from sapo_desktop.services.models import control
        from sapo_desktop.services.models.screen import settings_actions
        from sapo_desktop.services.swarms import sharing

        home = self._home
        async with sharing.member_client(home) as client:
            offers = await sharing.list_task_offers(client, home)
            offer = next((offer for offer in offers if (offer.name, offer.hash) == (task.name, task.version)), None)
            if offer is None:
                raise AppError(f"The swarm's {task.name} changed meanwhile. Look at it again: t")
            sentence = sharing.accept_task(home, client.invite.swarm, offer, await client.task(offer))
        model = await control.current_model(home)
        if model is not None:
            tasks = dict.fromkeys([*model.config.tasks, task.name])
            await asyncio.to_thread(settings_actions.change_model_setting, model, "run.tasks", ",".join(tasks))
        await control.restart_node(home, keep_mode=True)
        return f"{sentence} The node trains on it from now on."
