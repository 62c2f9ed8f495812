"""The first questions, one after the other: numbered answers, Enter takes the first, q leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from sapo_desktop.dashboard.look.show import plain
from sapo_desktop.linear.typed import TypedLines
from sapo_desktop.services.first_questions import LIST, OTHER, OWN, FirstRunAnswers, FirstRunInfo, is_checked

MODES = (
    ("silo", "train alone, nothing leaves this machine"),
    ("swarm", "share the text of attempts, learn from other nodes'; needs an invite"),
)


class Left(Exception):
    """The person wants to start nothing."""


class Questions:
    """Asks until an answer is one; says why another is not."""

    def __init__(self, typed: TypedLines, say: Callable[[str], None]) -> None:
        self._typed, self._say = typed, say

    async def ask(self, info: FirstRunInfo) -> FirstRunAnswers | None:
        """The answers; None where the person left."""
        self._say(
            "Welcome to sapo-desktop. It trains a small language model on reasoning tasks by reinforcement learning, here, "
            "on this machine, until you stop it. Every question has an answer already: Enter takes answer 1, q leaves and "
            "starts nothing."
        )
        try:
            mode: Literal["silo", "swarm"] = "swarm" if await self._pick("Mode", MODES) == "swarm" else "silo"
            invite = await self._invite(info) if mode == "swarm" else ""
            hardware = await self._pick("Hardware", info.hardware)
            model = await self._model(info)
            tasks = await self._pick("Tasks", [one for one in info.tasks if one[0] != OWN])
            limits = await self._pick("Limits", info.limits)
            name = (await self._line("Name that a swarm sees, or Enter to stay anonymous"))[:40]
        except Left:
            return None
        return FirstRunAnswers(mode, invite, False, hardware, model, tasks, limits, name)

    async def _line(self, question: str) -> str:
        self._say(question)
        line = await self._typed.line()
        if line is None or line.strip() == "q":
            raise Left
        return line.strip()

    async def _pick(self, name: str, answers: Sequence[tuple[str, str]]) -> str:
        self._say(f"{name}, {len(answers)} answers:")
        for place, (value, what) in enumerate(answers, 1):
            self._say(f"{place}, {plain(value, 80)}: {plain(what, 200)}")
        values = [value for value, _ in answers]
        while True:
            line = await self._line(f"{name}: a number, or Enter for {values[0]}")
            if not line or line in values:
                return line or values[0]
            if line.isascii() and line.isdigit() and 1 <= int(line[:4]) <= len(values):
                return values[int(line[:4]) - 1]
            self._say(f"{plain(line, 40)} is none of the {len(values)} answers")

    async def _invite(self, info: FirstRunInfo) -> str:
        from sapo_swarm.protocol.invite import BadInvite, parse_invite  # cryptography: only when one is typed

        while True:
            line = await self._line("Paste the invite, one line that begins with sapo://")
            try:
                parse_invite(line)
                wrong = await info.let_in(line) if info.let_in else ""
            except BadInvite as error:
                wrong = str(error)
            if not wrong:
                return line
            self._say(plain(wrong, 400))

    async def _model(self, info: FirstRunInfo) -> str:
        """One that can be used: the hub is asked for what is typed, and for its models on the list."""
        while True:
            chosen = await self._pick("Model", info.models)
            if chosen == LIST:
                chosen = await self._listed(info)
            model = await self._name() if chosen == OTHER else chosen
            wrong = await info.check(model) if info.check and is_checked(chosen) else ""
            if not wrong:
                return model
            self._say(plain(wrong, 400))

    async def _listed(self, info: FirstRunInfo) -> str:
        """One of this computer, or to download. What cannot be used is told of first, with its reason."""
        assert info.offers is not None  # without them the answer is not on offer
        self._say("Looking for models on this computer")
        groups, answers = await info.offers(False), list[tuple[str, str]]()
        for group in groups:
            for offer in group.offers:
                if offer.blocked:
                    self._say(f"Not {plain(offer.value, 80)}: {plain(offer.blocked, 200)}")
                else:
                    answers.append((offer.value, f"{offer.detail}. {group.title}"))
            for note in group.notes:
                self._say(plain(note, 300))
        return await self._pick("Model of the list", answers) if answers else OTHER

    async def _name(self) -> str:
        while not (line := await self._line("The model's hub id, such as owner/name, a GGUF file, or a folder")):
            self._say("Type one, or q to leave")
        return line
