"""Being in a swarm: the saved invite, the identity, the node's exchange, the shared tasks, and leaving."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from sapo_desktop import settings
from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models import control
from sapo_desktop.services.nodes import supervisor
from sapo_desktop.services.swarms import trial
from sapo_desktop.settings import Settings
from sapo_swarm.config import RunConfig
from sapo_swarm.node.clock import steady_seconds
from sapo_swarm.node.swarm_exchange import SwarmExchange
from sapo_swarm.node.swarm_stats import ExchangeHold
from sapo_swarm.protocol.client import CoordinatorError, NodeClient, Refused
from sapo_swarm.protocol.identity import KeyStoreError, StoredIdentity, load_or_create
from sapo_swarm.protocol.invite import BadInvite, Invite, parse_invite
from sapo_swarm.protocol.receive import AcceptanceRules
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.protocol.wire import TaskOffer
from sapo_swarm.tasks import catalogue
from sapo_swarm.tasks.own import library
from sapo_swarm.whole_file import write_atomically

# Which custom tasks a run trains on with others, and what the person should know about the rest.


def offer_status(offer: TaskOffer, swarm: str) -> str:
    """The state of an offered task in this home: "accepted", "shared" (by this home), "edited", "changed" or "new"."""
    accepted = library.shared_in(swarm).get(offer.name)
    if accepted is None:
        return "new"
    if accepted.digest != offer.hash:
        return "changed"
    if not library.has_shared_version(offer.name, swarm):
        return "edited"
    return "shared" if accepted.mine else "accepted"


def active_shared_tasks(
    config: RunConfig, swarm: str, offered: Sequence[TaskOffer] | None
) -> tuple[frozenset[tuple[str, str]], list[str]]:
    """(name, generator) of the custom tasks that this run trains on with others, and what the person should know.

    offered: None while the coordinator does not say: then what was accepted before counts. Raises BadTask.
    """
    mine = [name for name in config.tasks if catalogue.is_own(name)]
    if offered is None:
        return frozenset(
            (n, library.resolve_generator(n, swarm)) for n in mine if library.has_shared_version(n, swarm)
        ), []
    sentences: list[str] = []
    active: set[tuple[str, str]] = set()
    for offer in offered:
        how = offer_status(offer, swarm)
        if how in ("accepted", "shared") and offer.name in mine:
            active.add((offer.name, offer.generator))
            sentences += _of_active(offer, how)
        else:
            sentences.append(_of_inactive(offer, how))
    names = {offer.name for offer in offered}
    alone = [name for name in mine if name not in names]
    return frozenset(active), [
        *sentences,
        *(f"{name} is your own task: nothing of it leaves this machine." for name in alone),
    ]


def _of_active(offer: TaskOffer, how: str) -> Iterable[str]:
    yield f"{offer.name}: trained on together, version {offer.hash[:12]}."
    if how == "accepted" and not offer.held_out:
        yield f"{offer.name}: its held-out rows stay with the host, so no held-out score of it is measured here."


def _of_inactive(offer: TaskOffer, how: str) -> str:
    look = f"Look at it: sapo-desktop tasks offered {offer.name}"
    return {
        "new": f"This swarm has a task of its host's own, {offer.name}. You did not accept it, so it is not trained on. {look}",
        "changed": f"The host changed {offer.name} since you accepted it, so it is not trained on with others. {look}",
        "edited": (
            f"{offer.name} was edited or removed here, so it is not the swarm's any more and nothing of it is sent. The host "
            f"shares it again with: sapo-desktop tasks share {offer.name}. A member accepts it again: sapo-desktop tasks "
            f"accept {offer.name}"
        ),
    }.get(how, f"{offer.name} can be trained on together: add it to --tasks.")


# Being in a swarm: the saved invite, the identity, and the node's exchange.


def parse_typed_invite(text: str) -> Invite:
    """Raises UsageError."""
    try:
        return parse_invite(text.strip())
    except BadInvite as error:
        raise UsageError(str(error)) from error


def save_invite(text: str, path: Path, listed: bool = False) -> Invite:
    """Keep an invite, readable by its owner only. An invite that anyone may use (without a token, or listed in a directory)
    starts with a trial, unless it is for the swarm that this home is in already. Raises UsageError, AppError."""
    invite = parse_typed_invite(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if _swarm(path) != invite.swarm:
            trial.clear_trial(path)
            if listed or not invite.token:
                trial.begin_trial(path, invite.swarm)
        write_atomically(path, text.strip() + "\n", private=True)
    except OSError as error:
        raise AppError(f"Cannot keep the invite in {path} ({error.strerror}).") from error
    return invite


def for_trial(invite: Invite, path: Path) -> bool:
    """Whether a node that joins with this invite, saved there or about to be, is on trial."""
    if _swarm(path) == invite.swarm:
        return trial.find_trial(path, invite.swarm) is not None
    return not invite.token


def _swarm(path: Path) -> str:
    """The swarm of the saved invite; "" without one."""
    try:
        return load_invite(path).swarm
    except UsageError:
        return ""


def load_invite(path: Path) -> Invite:
    """Raises UsageError."""
    try:
        return parse_typed_invite(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("No invite is saved. Join with: sapo-desktop node --join INVITE") from error


def forget_invite(path: Path) -> None:
    """Delete the saved invite, and any trial with it. Raises AppError."""
    try:
        path.unlink(missing_ok=True)
        trial.clear_trial(path)
    except OSError as error:
        raise AppError(f"Cannot remove the invite {path} ({error.strerror}).") from error


def require_shared(config: RunConfig, swarm: str = "") -> None:
    """Raise UsageError where nothing that this node trains on may leave the machine: custom tasks are private, unless they
    are shared in the swarm with this id. Raises BadTask."""
    if all(catalogue.is_own(task) and not library.has_shared_version(task, swarm) for task in config.tasks):
        raise UsageError(
            f"{', '.join(config.tasks)}: your own tasks are private, nothing of them is shared with a swarm. Train on them "
            "alone (out of a swarm: sapo-desktop leave), add a task that the swarm knows, or train on one with friends: "
            "sapo-desktop tasks share NAME"
        )


def load_identity(home: Home) -> StoredIdentity:
    """The identity, created on first use. Raises AppError."""
    try:
        return load_or_create(home.data / "identity")
    except KeyStoreError as error:
        raise AppError(str(error)) from error


def acceptance_rules(config: RunConfig, own: frozenset[tuple[str, str]]) -> AcceptanceRules:
    """What a node with these settings accepts from others: its own tasks, without the held-out questions that the tripwire
    asks, judged as strictly as local ones. own: see AcceptanceRules."""
    presets = catalogue.STRICT_PRESETS | {config.preset}
    return AcceptanceRules(frozenset(config.tasks), presets, own, rule=config.reward_rule)


def public_model_name(model: str) -> str:
    """A model's name as others may see it: no path, printable ASCII, 80 characters."""
    return re.sub(r"[^\x20-\x7e]", "?", Path(model).name)[:80] or "model"


async def request_admission(home: Home, invite: Invite, name: str, model: str) -> None:
    """Join the swarm before anything about it is stored. A coordinator that is unreachable or busy is no obstacle.

    Raises UsageError when the coordinator refuses this node (an invite that is used up, a ban), AppError.
    """
    signer = await asyncio.to_thread(load_identity, home)
    async with NodeClient(invite, signer.identity) as client:
        try:
            await client.join(name, public_model_name(model))
        except Refused as error:
            if error.retry_after_s is None:
                raise UsageError(f"{_refusal(error)} Nothing was changed.") from error
        except CoordinatorError:
            return


def _refusal(error: Refused) -> str:
    if error.code == "bad_signature":
        return "The invite is for another swarm or mistyped; copy the whole line."
    return f"The coordinator refuses: {safe_text(str(error), 300, lines=False)}"


OPEN_SWARM_HOLD = ExchangeHold(
    "trial at the next start", "This swarm is open to anyone now. Its trial begins when the node starts again"
)
"""Of a node that learns during its run that the swarm is open: a trial has its own settings."""


async def join_swarm(
    invite: Invite,
    who: StoredIdentity,
    settings: Settings,
    config: RunConfig,
    memory: Path | None = None,
    on_trial: bool = False,
    saved: Path | None = None,
) -> tuple[SwarmExchange, list[str]]:
    """Join the swarm; returns the node's exchange and sentences for the person. An unreachable coordinator is no obstacle.
    memory: the model's folder, where the exchange stores what was learned from others. on_trial: by the rules of a trial.
    saved: where the invite is; a trial begins beside it where the swarm turns out to be open.

    Raises UsageError when the coordinator refuses this node (a bad invite, a ban), AppError, BadTask.
    """
    shared, _ = active_shared_tasks(config, invite.swarm, None)
    client = await NodeClient(invite, who.identity).__aenter__()
    rules = acceptance_rules(config, shared)
    strict = trial.trial_rules(rules)
    name, model = settings.person.name, public_model_name(config.model)
    exchange = SwarmExchange(
        client, strict if on_trial else rules, model, config.sampling, name, memory=memory, clock=steady_seconds
    )
    if saved is not None and not on_trial:
        exchange.joined = lambda info: OPEN_SWARM_HOLD if info.open and _unsettled(saved, invite) else None
    sentences: list[str] = []
    try:
        info = await client.join(exchange.name, exchange.model)
        exchange.share_fraction = info.share_fraction
        if info.open and saved is not None and not on_trial and await asyncio.to_thread(_on_trial, saved, invite):
            on_trial, exchange.policy = True, strict
        shared, sentences = active_shared_tasks(config, invite.swarm, await client.tasks())
        if not on_trial:
            exchange.policy = replace(rules, own=shared)
    except Refused as error:
        if error.retry_after_s is not None:  # busy: the node joins with its first exchange
            return exchange, [f"{_sentence(error)} {who.sentence}"]
        await client.__aexit__(None, None, None)
        raise UsageError(
            f"{_refusal(error)} To train alone: sapo-desktop leave, or sapo-desktop node --silo"
        ) from error
    except CoordinatorError as error:
        return exchange, [f"{_sentence(error)} {who.sentence}"]
    name = safe_text(info.name, 40, lines=False)
    trust = ", open to anyone: nobody in it is trusted" if info.open else ""
    return exchange, [
        f"Joined {name}: {info.nodes} node{'' if info.nodes == 1 else 's'}{trust}. {who.sentence}",
        *sentences,
    ]


def _on_trial(path: Path, invite: Invite) -> bool:
    try:
        return trial.begin_once(path, invite.swarm)
    except OSError as error:
        raise AppError(f"The trial in this open swarm cannot be kept beside {path} ({error.strerror}).") from error


def _unsettled(path: Path, invite: Invite) -> bool:
    """Whether this node is on trial in the open swarm. If the disk refuses to store that, it is: the swarm is no safer for
    it."""
    try:
        return _on_trial(path, invite)
    except AppError:
        return True


def _sentence(error: CoordinatorError) -> str:
    return f"{safe_text(str(error), 300, lines=False)} Training alone until it answers."


# Leaving a swarm: the node trains alone, the coordinator is told, the invite is forgotten. Or staying after a trial.


async def leave_swarm(home: Home, keep_invite: bool = False) -> str:
    """Remove the node's groups from the pool and train alone from the next round on. Raises AppError."""

    invite = load_invite(home.invite)
    settings.write_setting(home.settings, "swarm.join", "false")
    status = await supervisor.wait_for_status(home)
    if status is not None and status.mode == "swarm":
        await control.restart_node(home)
    note = "The coordinator knows."
    try:
        async with NodeClient(invite, (await asyncio.to_thread(load_identity, home)).identity) as client:
            await client.leave()
    except (AppError, CoordinatorError) as error:  # AppError: the keyring is locked, so nothing can be signed
        note = f"The coordinator could not be told: {error} Its copies of your groups expire by themselves."
    if not keep_invite:
        forget_invite(home.invite)
    return f"Left the swarm. {note} {'The invite is kept.' if keep_invite else 'The invite is forgotten.'}"


async def stay_in_swarm(home: Home) -> str:
    """End the trial with a yes: normal settings from the next round on. Raises UsageError, AppError."""
    invite = await asyncio.to_thread(load_invite, home.invite)
    if await asyncio.to_thread(trial.find_trial, home.invite, invite.swarm) is None:
        raise UsageError("This node is on no trial: it takes part with its normal settings already.")
    await asyncio.to_thread(trial.confirm_trial, home.invite, invite.swarm)
    status = await supervisor.wait_for_status(home)
    if status is not None and status.mode == "swarm":
        await control.restart_node(home, keep_mode=True)
    return "The trial is over: the node stays in the swarm, with its normal settings"
