"""The keys for models, in the list and in an opened model. Each asks first if something would be lost."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.binding import Binding, BindingType

from sapo_desktop.dashboard.look import format_memory
from sapo_desktop.dashboard.screens.base import BaseScreen
from sapo_desktop.dashboard.screens.dialogs import ChoiceDialog
from sapo_desktop.dashboard.screens.models.dialogs import KeptStatesDialog, NameDialog, NewModelDialog
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets.frame import Key
from sapo_desktop.errors import USER_ERRORS
from sapo_desktop.services.models.screen.interface import ExportChoice, ModelListing
from sapo_desktop.services.models.shelf.overview import ModelOverview
from sapo_desktop.services.models.shelf.store import unused_name

if TYPE_CHECKING:
    from sapo_desktop.services.models.screen.actions import HomeModels

COMPARED_ITEMS = 50
"""Held-out questions per task when two models are compared here; sapo-desktop compare --items allows more."""
AGAIN_S = 5.0
"""Seconds between reads of the disk while the screen is shown, since a model in training changes."""
MORE = (("m", "new task"), ("r", "rename"), ("d", "duplicate"), ("f", "free space"), ("k", "go back"), ("x", "delete"))
"""Keys that do not fit in the footer."""


class ModelKeys(BaseScreen):
    """The keys, and reading the disk. Subclasses say which model is selected and draw the data."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "proceed", "continue", show=False),
        Binding("n", "new", "new", show=False),
        Binding("r", "rename", "rename", show=False),
        Binding("d", "duplicate", "duplicate", show=False),
        Binding("x", "delete", "delete", show=False),
        Binding("v", "compare", "compare", show=False),
        Binding("t", "chat", "chat", show=False),
        Binding("e", "export", "export", show=False),
        Binding("f", "free", "free space", show=False),
        Binding("k", "go_back", "go back", show=False),
    ]
    shelf = ModelListing()

    @property
    @abstractmethod
    def chosen(self) -> ModelOverview | None:
        """The selected model."""

    @abstractmethod
    def fill(self) -> None:
        """Draw the models as read from the disk."""

    def complain(self, error: Exception) -> None:
        """Show why the models cannot be read."""
        self.dashboard.say(str(error), error=True)

    def on_mount(self) -> None:
        """Start reading the disk periodically."""
        self.set_interval(AGAIN_S, self._again)

    def _again(self) -> None:
        if self.is_current:
            self.look()

    def on_screen_resume(self) -> None:
        """Read again, since something may have changed meanwhile."""
        super().on_screen_resume()
        self.look()

    def look(self) -> None:
        """Read the disk again, in a worker."""
        self._look()

    @work(name="shelf", group="shelf", exclusive=True)
    async def _look(self) -> None:
        try:
            self.shelf = await self.actions.shelf()
        except USER_ERRORS as error:
            self.complain(error)
        else:
            self.fill()

    @property
    def actions(self) -> HomeModels:
        """The actions on models."""
        actions = self.dashboard.model_actions
        assert actions is not None  # otherwise this screen does not exist
        return actions

    def own_keys(self, state: DashboardState) -> list[Key]:  # noqa: ARG002 - as every screen
        """The keys of this screen."""
        return [
            ("c", "continue", "screen.proceed"),
            ("n", "new", "screen.new"),
            ("v", "compare", "screen.compare"),
            ("t", "chat", "screen.chat"),
            ("e", "export", "screen.export"),
        ]

    # Running an action and reporting the outcome

    def do(self, work: Awaitable[str], meanwhile: str = "") -> None:
        """Run the work, even if this screen is closed meanwhile, and show the outcome."""
        if meanwhile:
            self.dashboard.say(meanwhile)
        self.app.run_worker(self._finish(work), name="model", exit_on_error=True)

    async def _finish(self, work: Awaitable[str]) -> None:
        await self.dashboard.told(work)
        if self.is_running:
            self.look()

    def made(self) -> None:
        """A model was created: select the newest."""

    def _made(self, sentence: str | None) -> None:
        if sentence:
            self.made()
        self._done(sentence)

    def _done(self, sentence: str | None) -> None:
        """Called with the sentence of a dialog that has finished its work."""
        if sentence:
            self.dashboard.say(sentence)
            self.look()

    # The keys

    def action_proceed(self) -> None:
        """Let the node go on with this model."""
        if (one := self.chosen) is not None:
            if one.model.record.id == self.shelf.training:
                if self.dashboard.state.resumable:
                    self.dashboard.command("resume", f"Going on with {one.model.name}")
                else:
                    self.dashboard.say(f"The node trains {one.model.name} already")
                return
            busy = "Finishing the round, then going on with" if self.shelf.training else "Starting the node with"
            self.do(self.actions.proceed(one.model.record.id), f"{busy} {one.model.name}")

    def action_new(self) -> None:
        """Make a new model: ask for its name and base."""
        self.run_worker(self._new(), group="dialog", exclusive=True, exit_on_error=True)

    async def _new(self) -> None:
        if (offer := await self.dashboard.outcome(self.actions.offer())) is not None:
            self.app.push_screen(NewModelDialog(offer, self.actions.new), self._made)

    def action_rename(self) -> None:
        """Rename it."""
        if (one := self.chosen) is not None:
            name, id = one.model.name, one.model.record.id
            detail = "The weights, the history and the folder stay where they are."
            dialog = NameDialog(f"Rename {name}", detail, name, lambda new: self.actions.rename(id, new))
            self.app.push_screen(dialog, self._done)

    def action_duplicate(self) -> None:
        """Duplicate it under another name."""
        if (one := self.chosen) is not None:
            name, id = one.model.name, one.model.record.id
            detail = (
                f"Another model with the same weights and history; it takes about {format_memory(one.size, '0 MB')}."
            )
            free = unused_name(name, [other.model.name for other in self.shelf.models])
            dialog = NameDialog(f"Duplicate {name}", detail, free, lambda new: self.actions.duplicate(id, new))
            self.app.push_screen(dialog, self._done)

    def action_delete(self) -> None:
        """Delete it, after a yes."""
        if (one := self.chosen) is None:
            return
        name, id = one.model.name, one.model.record.id
        stop = "the node that trains it is stopped first; " if id == self.shelf.training else ""
        detail = f"{stop}weights, history and exports are gone for ever; frees {format_memory(one.size, '0 MB')}"

        def chosen(yes: bool | None) -> None:
            if yes:
                self.do(self.actions.delete(id), f"Deleting {name}")

        self.app.push_screen(ChoiceDialog(f"Delete {name}?", [("Delete it", detail, True)], careful=True), chosen)

    def action_free(self) -> None:
        """Free space on the disk: say what may go, ask, then remove it."""
        if (one := self.chosen) is not None:
            self.run_worker(self._free(one), group="dialog", exclusive=True, exit_on_error=True)

    async def _free(self, one: ModelOverview) -> None:
        id = one.model.record.id
        if (spare := await self.dashboard.outcome(self.actions.spare(id))) is None:
            return
        count, size = spare
        if not count:
            self.dashboard.say(f"{one.model.name} has its newest and its best checkpoints only: nothing to free")
            return

        def chosen(yes: bool | None) -> None:
            if yes:
                self.do(self.actions.free(id))

        label = f"Remove {count} older checkpoint{'' if count == 1 else 's'}"
        detail = f"frees {format_memory(size, '0 MB')}; the newest and the best ones stay"
        self.app.push_screen(ChoiceDialog(f"Free space of {one.model.name}", [(label, detail, True)]), chosen)

    def action_go_back(self) -> None:
        """Go back to a kept state of it: choose one by its held-out results."""
        if (one := self.chosen) is not None:
            self.run_worker(self._go_back(one), group="dialog", exclusive=True, exit_on_error=True)

    async def _go_back(self, one: ModelOverview) -> None:
        name, id = one.model.name, one.model.record.id
        if (states := await self.dashboard.outcome(self.actions.kept_states(id))) is None:
            return

        def confirmed(target: int | None) -> None:
            if target is not None:
                busy = f"{name} goes back to checkpoint {target}"
                self.do(self.actions.go_back(id, target), busy)

        def chosen(target: int | None) -> None:
            if target is None:
                return
            node = "a round in flight is dropped; " if id == self.shelf.training else ""
            detail = f"{node}nothing is lost: the present state is kept as a checkpoint"
            where = f"of checkpoint {target}" if target else "before training"
            question = f"Go back to the weights of {name} {where}?"
            self.app.push_screen(ChoiceDialog(question, [("Go back", detail, target)]), confirmed)

        self.app.push_screen(KeptStatesDialog(name, states), chosen)

    def action_compare(self) -> None:
        """Compare it with another one: measure both."""
        if (one := self.chosen) is None:
            return
        from sapo_desktop.dashboard.screens.models.compare import CompareScreen

        others = [other for other in self.shelf.models if other.model.record.id != one.model.record.id]
        answers: list[tuple[str, str, str | None]] = [("Its base", one.model.record.base, "")]
        answers += [(other.model.name, f"from {other.model.record.base}", other.model.record.id) for other in others]

        def chosen(id: str | None) -> None:
            if id is not None:
                second = next((other for other in others if other.model.record.id == id), None)
                self.app.push_screen(CompareScreen(one, second, COMPARED_ITEMS))

        self.app.push_screen(ChoiceDialog(f"Compare {one.model.name} with", answers), chosen)

    def action_chat(self) -> None:
        """Talk to it beside its base."""
        if (one := self.chosen) is not None:
            from sapo_desktop.dashboard.screens.models.chat import ChatScreen

            self.app.push_screen(ChatScreen(one.model.record.id, one.model.name))

    def action_export(self) -> None:
        """Export it for other programs: ask for the format."""
        if (one := self.chosen) is None:
            return
        from sapo_desktop.dashboard.screens.models.dialogs import ExportScreen

        id, name = one.model.record.id, one.model.name
        answers = [(choice.label, choice.what, choice) for choice in self.actions.exports(id)]

        def chosen(choice: ExportChoice | None) -> None:
            if choice is not None:
                self.app.push_screen(ExportScreen(name, choice, self.actions.export(id, choice)), lambda _: self.look())

        self.app.push_screen(ChoiceDialog(f"Export {name} as", answers), chosen)
