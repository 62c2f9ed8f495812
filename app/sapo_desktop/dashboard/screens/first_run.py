"""The first start: five questions on one screen, all with an answer preselected. Enter starts; q and Esc start nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from sapo_desktop.dashboard.look import fit_width, plain_text
from sapo_desktop.dashboard.screens.dialogs import Dialog, key_hint
from sapo_desktop.dashboard.widgets.choice import Choice
from sapo_desktop.dashboard.widgets.frame import ChoiceList
from sapo_desktop.errors import USER_ERRORS
from sapo_desktop.services.first_questions import (
    LIST,
    OTHER,
    OWN,
    BaseGroup,
    BaseOffer,
    Check,
    FirstRunAnswers,
    FirstRunInfo,
    Measure,
    Offers,
    is_checked,
)
from sapo_desktop.services.tasks.wizard.interface import WizardResult

# The list of models to start from: on this computer, to download, and the toys. Names and paths are untrusted text.

NAME = 36
"""Columns for a model's name; the full name is shown below the list."""


DROPPED = "the file that you dropped"


class DropInput(Input):
    """A field that leaves a dropped file, or an invite, to the screen."""

    def on_paste(self, event: events.Paste) -> None:
        """A terminal pastes the path of a file that is dropped on it, wherever the cursor is."""
        if isinstance(self.screen, FirstRunScreen) and self.screen.take_pasted(event.text):
            event.prevent_default()
            event.stop()


class BasesDialog(Dialog[BaseOffer | None]):
    """Returns the chosen model; None after Esc. Untrainable models are listed in grey with the reason; the cursor skips them."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("r", "renew", "look again", show=False)]
    AUTO_FOCUS: ClassVar[str | None] = "#bases"

    def __init__(self, offers: Offers, chosen: str = "") -> None:
        """chosen: the model initially under the cursor, if it is on the list."""
        super().__init__()
        self._offers, self._chosen = offers, chosen
        self._rows: list[BaseOffer | None] = []
        """For each row of the list its model, or None for a title or a sentence."""

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with Vertical(classes="box dialog bases"):
            yield Static(Content.styled("A real model to start from", "bold"), markup=False)
            yield ChoiceList(id="bases", markup=False)
            yield Static("", id="detail", markup=False)
            yield Static("", id="complaint", markup=False)
            keys = (
                ("Enter", "take it"),
                ("↑ ↓", "choose"),
                ("drop a GGUF", "take that"),
                ("r", "again"),
                ("Esc", "back"),
            )
            yield Static(key_hint(*keys), markup=False)

    def on_mount(self) -> None:
        """Scan the disks, and check whether the hub answers."""
        self._look(False)

    def on_paste(self, event: events.Paste) -> None:
        """Close with a GGUF file that was dropped here."""
        from sapo_desktop.services.tasks.wizard.places import dropped_file

        if path := dropped_file(event.text, (".gguf",)):
            self.dismiss(BaseOffer(path, DROPPED))
        else:
            self.complain("That is no GGUF file. Drop one here, or choose from the list.")

    def action_renew(self) -> None:
        """Look again."""
        self._look(True)

    def _look(self, again: bool) -> None:
        self.complain("Looking for models on this computer …", "$muted")
        self.run_worker(self._fill(again), group="bases", exclusive=True, exit_on_error=True)

    async def _fill(self, again: bool) -> None:
        try:
            groups = await self._offers(again)
        except USER_ERRORS as error:
            self.complain(str(error))
            return
        self.complain("")
        rows = self.query_one("#bases", OptionList)
        rows.clear_options()
        self._rows = []
        for group in groups:
            for row, offer in _lines(group, len(self._rows) > 0):
                rows.add_option(Option(row, disabled=offer is None or bool(offer.blocked)))
                self._rows.append(offer)
        free = [place for place, offer in enumerate(self._rows) if offer is not None and not offer.blocked]
        named = [place for place in free if (offer := self._rows[place]) is not None and offer.value == self._chosen]
        rows.highlighted = next(iter([*named, *free]), None)
        rows.focus()

    def complain(self, text: str, style: str = "$warning") -> None:
        """Show the message; an empty text hides the line."""
        self.query_one("#complaint").display = bool(text)
        super().complain(text, style)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Describe the model under the cursor."""
        offer = self._rows[event.option_index] if event.option_index < len(self._rows) else None
        more = f"{plain_text(offer.value, 100)}: {plain_text(offer.more or offer.detail, 300)}" if offer else ""
        self.query_one("#detail", Static).update(Content.styled(more, "$muted"))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Close with the chosen model."""
        event.stop()
        self.dismiss(self._rows[event.option_index])


def _lines(group: BaseGroup, below: bool) -> list[tuple[Content, BaseOffer | None]]:
    """A group's title, models and sentences. below: whether another group is above it."""
    title = Content.styled(plain_text(group.title, 100), "bold $accent")
    lines: list[tuple[Content, BaseOffer | None]] = [(Content(""), None)] if below else []
    lines.append((title, None))
    for offer in group.offers:
        grey = "$muted" if offer.blocked else ""
        name = (f"  {fit_width(plain_text(offer.value, 200), NAME)} ", grey)
        lines.append((Content.assemble(name, (plain_text(offer.detail, 160), "$muted")), offer))
    return [*lines, *((Content.styled(f"  {plain_text(note, 200)}", "$muted"), None) for note in group.notes)]


MODES = (
    ("silo", "train alone, nothing leaves this machine"),
    ("swarm", "share attempts as text, learn from other nodes'"),
)
FIND = ("find", "look for a swarm that anyone may join, on trial")
Measured = tuple[str, str, str, str]
"""What a speed is measured for: see first_questions.Measure."""
_SETTLED_S = 0.3
"""Seconds that an answer must stay unchanged before it is measured."""


def _reading(model: str) -> str:
    """What a check of this base does: only of an id is anything asked of others."""
    return "reading the model's files" if os.path.isabs(model) or model.endswith(".gguf") else "asking the hub"


class FirstRunScreen(Dialog[FirstRunAnswers]):
    """Modal, so that keys typed here never reach the dashboard."""

    AUTO_FOCUS: ClassVar[str | None] = "#mode"
    VERTICAL_BREAKPOINTS = [(0, "-low"), (30, "-tall")]  # noqa: RUF012 - Textual declares it as an instance variable
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "accept", "start"),
        Binding("escape", "leave", "leave", priority=True),
        Binding("q", "leave", "leave", show=False),
        Binding("down", "app.focus_next", "next field", show=False, priority=True),
        Binding("up", "app.focus_previous", "previous field", show=False, priority=True),
    ]

    def __init__(self, info: FirstRunInfo, pasted: str = "") -> None:
        """pasted: text that came before this screen was there."""
        super().__init__()
        self.info, self._pasted = info, pasted
        self.asked: Measured | None = None
        self.speeds: dict[Measured, str] = {}
        self.listed = ""
        """The invite line found in a directory."""
        self._file = ""
        """The path of a table that was dropped on the screen."""

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with VerticalScroll(classes="box welcome", can_focus=False) as box:
            keys = (("Enter", "start"), ("arrows", "change"), ("F1", "help"), ("q Esc", "leave: nothing is started"))
            box.border_subtitle = key_hint(*keys)
            yield Static(self._welcome(), markup=False)
            yield Choice("Mode", self._modes(), id="mode")
            yield DropInput(placeholder="Invite     paste the line that the host gave you", id="invite", compact=True)
            yield Choice("Tasks", self.info.tasks, id="tasks")
            yield Choice("Model", self.info.models, id="model")
            yield DropInput(
                placeholder="           a hub id such as owner/name, a GGUF file, or a folder",
                id="typed",
                compact=True,
                max_length=400,
                select_on_focus=False,
            )
            yield Choice("Hardware", self.info.hardware, id="hardware")
            yield Static("", id="speed", markup=False)
            yield Choice("Limits", self.info.limits, id="limits")
            yield DropInput(
                placeholder="Name       anonymous (only a swarm would see it)", id="name", compact=True, max_length=40
            )
            yield Static("", id="complaint", markup=False)

    def _modes(self) -> tuple[tuple[str, str], ...]:
        return (*MODES, FIND) if self.dashboard.swarm_actions is not None else MODES

    def _welcome(self) -> Content:
        return Content.assemble(
            ("Welcome to sapo-desktop\n\n", "bold $primary"),
            "It trains a language model here, on this machine: on a table of yours, or on reasoning tasks by reinforcement "
            "learning. Everything below is filled in already. To train on a table, drop its file here; to train a model that you "
            "have, drop its GGUF file too.\n",
        )

    def on_mount(self) -> None:
        """Fill in what depends on other answers, then what takes a while to look up."""
        self.answers_changed()
        if self._pasted:
            self._take_or_explain(self._pasted)
        if self.info.whole is not None:
            self.run_worker(self._look_up(self.info.whole), group="whole")

    async def _look_up(self, whole: Callable[[], Awaitable[FirstRunInfo]]) -> None:
        """Offer everything, with the slowest look-up last. An answer chosen meanwhile stays."""
        self.info = await whole()
        before = self._value("hardware"), self._value("model")
        answers = {"hardware": self.info.hardware, "model": self.info.models, "tasks": self.info.tasks}
        for name, offered in answers.items():
            self.query_one(f"#{name}", Choice).offer(offered)
        self._let_model_follow()
        if (self._value("hardware"), self._value("model")) != before:
            self.answers_changed()
        if self.info.whole is not None:
            await self._look_up(self.info.whole)

    def on_choice_changed(self) -> None:
        """Update the other questions, whose answers may depend on this one."""
        self._let_model_follow()
        self.answers_changed()

    def _let_model_follow(self) -> None:
        """Preselect a real model for a table, unless the person chose a model."""
        model = self.query_one("#model", Choice)
        if not model.chosen:
            own = self._value("tasks") == OWN
            model.fall_back(self.info.own_base if own else self.info.models[0][0])

    def answers_changed(self) -> None:
        """Show the invite field only for a swarm, and measure the speed of the chosen engine and model."""
        self.complain("")
        self.query_one("#invite", Input).display = self._value("mode") == "swarm"
        model, tasks = self._value("model"), self._value("tasks")
        on = ("", "") if model in self.info.toys else (tasks, self._file if tasks == OWN else "")
        wanted = (self._value("hardware"), model, *on)
        self.query_one("#typed", Input).display = model == OTHER
        named = model not in (OTHER, LIST)
        self.query_one("#speed", Static).display = self.info.measure is not None and named
        if self.info.measure is not None and wanted != self.asked and named:
            self.asked = wanted
            self.run_worker(
                self._measure(self.info.measure, wanted), group="speed", exclusive=True, exit_on_error=False
            )

    async def _measure(self, measure: Measure, wanted: Measured) -> None:
        """Show the speed of the chosen answer. Another answer, or the end of the questions, cancels this."""
        if wanted not in self.speeds:
            self._say_speed("measuring its speed …")
            await asyncio.sleep(_SETTLED_S)
            self.speeds[wanted] = await measure(*wanted)
        self._say_speed(self.speeds[wanted] or "its speed is not known: see sapo-desktop bench")

    def _say_speed(self, sentence: str) -> None:
        self.query_one("#speed", Static).update(Content.styled(plain_text(sentence, 160), "$muted"))

    def on_paste(self, event: events.Paste) -> None:
        """Handle text pasted outside a field."""
        self._take_or_explain(event.text)

    def _take_or_explain(self, pasted: str) -> None:
        if not self.take_pasted(pasted):
            from sapo_desktop.services.tasks.wizard.places import refused_drop

            usual = "Drop a table or a model's GGUF file here, or paste an invite, which begins with sapo://."
            self.complain(plain_text(refused_drop(pasted) or usual, 300))

    def take_pasted(self, pasted: str) -> bool:
        """An invite means to join that swarm; the path of a table, which a terminal pastes for a dropped file, to train on
        it; that of a GGUF file to start from that model. Whether it was one of these."""
        from sapo_desktop.services.tasks.wizard.places import dropped_file

        text = pasted.strip()
        if text.startswith("sapo://"):
            self._take(text.splitlines()[0])
        elif path := dropped_file(text):
            self._file = path
            self.query_one("#tasks", Choice).choose(OWN, plain_text(path, 200))
        elif path := dropped_file(text, (".gguf",)):
            self.query_one("#model", Choice).choose(path, DROPPED)
        else:
            return False
        return True

    def on_key(self, event: events.Key) -> None:
        """What is typed on "another" is the model."""
        on_model = self.focused is not None and self.focused.id == "model" and self._value("model") == OTHER
        if on_model and event.character and event.is_printable:
            event.stop()
            self._type_base(event.character)

    def _type_base(self, text: str) -> None:
        """Answer with another model, of this name or with these letters of it."""
        model, typed = self.query_one("#model", Choice), self.query_one("#typed", Input)
        if model.value != OTHER:
            model.choose(OTHER, dict(model.answers).get(OTHER, ""))
        self.answers_changed()
        typed.focus()
        typed.insert_text_at_cursor(text)

    def _take(self, line: str) -> None:
        """Answer with the swarm of this invite."""
        mode, invite = self.query_one("#mode", Choice), self.query_one("#invite", Input)
        mode.place = [name for name, _ in MODES].index("swarm")
        mode.refresh()
        self.answers_changed()
        invite.value = line
        invite.focus()

    def on_input_submitted(self) -> None:
        """Enter in a field."""
        self.action_accept()

    def _value(self, name: str) -> str:
        return self.query_one(f"#{name}", Choice).value

    def action_accept(self) -> None:
        """Start with these answers; an invite or a model that cannot work is explained instead, and a list is opened first."""
        if self._value("mode") == FIND[0]:
            self._find()
            return
        if self._value("model") == LIST:
            self._list_bases()
            return
        invite = self.query_one("#invite", Input).value.strip() if self._value("mode") == "swarm" else None
        text = "" if invite is None else self._wrong_with(invite)
        if text:
            self._complain(text, "#invite")
        elif (invite and self.info.let_in) or is_checked(self._value("model")):
            self.run_worker(self._check(invite or ""), group="check", exclusive=True, exit_on_error=False)
        else:
            self._close(self._value("model"))

    def _find(self) -> None:
        """Choose a swarm from the directories; Esc there leads back to the questions."""
        from sapo_desktop.dashboard.screens.swarm.find import FindDialog

        actions = self.dashboard.swarm_actions
        assert actions is not None  # otherwise this answer is not offered

        def chosen(line: str | None) -> None:
            if line:
                self.listed = line
                self._take(line)

        self.app.push_screen(FindDialog(actions), chosen)

    def _list_bases(self) -> None:
        """Choose a model from the list; Esc there leads back to the questions."""

        assert self.info.offers is not None  # otherwise this answer is not offered

        def chosen(offer: BaseOffer | None) -> None:
            model = self.query_one("#model", Choice)
            if offer is not None:
                model.choose(offer.value, offer.detail)
            model.focus()

        self.app.push_screen(BasesDialog(self.info.offers), chosen)

    def _complain(self, text: str, where: str) -> None:
        self.complain(text)
        self.query_one(where).focus()

    async def _check(self, invite: str) -> None:
        """Accept a hub model if it is usable, and the invite ("" = none) if it admits this node; otherwise show the
        reason."""
        other = self._value("model") == OTHER
        model = self.query_one("#typed", Input).value.strip() if other else self._value("model")
        if not model:
            self._complain("Type a hub id such as owner/name, the path of a GGUF file, or a folder.", "#typed")
        elif wrong := await self._asked(
            _reading(model), self.info.check, model if is_checked(self._value("model")) else ""
        ):
            self._complain(wrong, "#typed" if other else "#model")
        elif wrong := await self._asked("asking the coordinator", self.info.let_in, invite):
            self._complain(wrong, "#invite")
        else:
            self._close(model)

    async def _asked(self, doing: str, check: Check | None, typed: str) -> str:
        if check is None or not typed:
            return ""
        self.complain(f"{doing} …", "$muted")
        return await check(typed)

    def _close(self, model: str) -> None:
        swarm = self._value("mode") == "swarm"
        invite = self.query_one("#invite", Input).value.strip() if swarm else ""
        answers = FirstRunAnswers(
            mode="swarm" if swarm else "silo",
            invite=invite,
            listed=bool(invite) and invite == self.listed,
            hardware=self._value("hardware"),
            model=model,
            tasks=self._value("tasks"),
            limits=self._value("limits"),
            name=self.query_one("#name", Input).value.strip(),
        )
        if answers.tasks == OWN:
            self.complain("")
            self._make_task(answers)
        else:
            self.dismiss(answers)

    def _make_task(self, answers: FirstRunAnswers) -> None:
        """Ask for the file; Esc there leads back to the questions."""
        from sapo_desktop.dashboard.screens.task_wizard import DraftScreen, PlacesScreen

        actions = self.dashboard.task_actions
        assert actions is not None  # otherwise this answer is not offered

        def made(found: WizardResult | None) -> None:
            if found is not None:
                self.dismiss(replace(answers, model=found.base, task=found.task))

        if self._file:
            self.app.push_screen(DraftScreen(actions, self._file, answers.model), made)
        else:
            self.app.push_screen(PlacesScreen(actions, answers.model), made)

    def _wrong_with(self, invite: str) -> str:
        """Why a node cannot join with this invite; "" if it can."""
        if not invite:
            return "A swarm needs an invite: paste the line its host gave you, or choose silo."
        from sapo_swarm.protocol.invite import (  # imports cryptography: only when an invite was typed
            BadInvite,
            parse_invite,
        )

        try:
            parse_invite(invite)
        except BadInvite as error:
            return plain_text(str(error), 200)
        return ""

    def action_leave(self) -> None:
        """Esc in a field goes back to the choices; otherwise close without answers: nothing is started or written."""
        if isinstance(self.focused, Input):
            self.query_one("#model" if self.focused.id == "typed" else "#mode", Choice).focus()
        else:
            self.dismiss(None)
