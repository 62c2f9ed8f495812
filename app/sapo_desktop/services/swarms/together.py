"""Which tasks of people's own a run trains on with others, and what the person should know about the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sapo_swarm.config import RunConfig
from sapo_swarm.protocol.wire import TaskOffer
from sapo_swarm.tasks import catalogue
from sapo_swarm.tasks.own import library


def standing(offer: TaskOffer, swarm: str) -> str:
    """Where this home stands with an offered task: "accepted", "shared" (by itself), "edited", "changed" or "new"."""
    known = library.shared_in(swarm).get(offer.name)
    if known is None:
        return "new"
    if known.digest != offer.hash:
        return "changed"
    if not library.travels(offer.name, swarm):
        return "edited"
    return "shared" if known.mine else "accepted"


def together(
    config: RunConfig, swarm: str, offered: Sequence[TaskOffer] | None
) -> tuple[frozenset[tuple[str, str]], list[str]]:
    """(name, generator) of the tasks of people's own that this run trains on with others, and what the person should know.

    offered: None while the coordinator does not say: what was accepted before counts. Raises BadTask.
    """
    mine = [name for name in config.tasks if catalogue.is_own(name)]
    if offered is None:
        return frozenset((n, library.generator(n, swarm)) for n in mine if library.travels(n, swarm)), []
    said: list[str] = []
    active: set[tuple[str, str]] = set()
    for offer in offered:
        how = standing(offer, swarm)
        if how in ("accepted", "shared") and offer.name in mine:
            active.add((offer.name, offer.generator))
            said += _of_active(offer, how)
        else:
            said.append(_of_inactive(offer, how))
    names = {offer.name for offer in offered}
    alone = [name for name in mine if name not in names]
    return frozenset(active), [
        *said,
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
