"""The footer: at most eight keys in one line, each also a button for the mouse."""

from __future__ import annotations

from textual.content import Content
from textual.events import Click
from textual.widget import Widget

MAX_KEYS = 8
Key = tuple[str, str, str]
"""What to press, what it does, and the Textual action behind it."""


class KeyBar(Widget):
    """One line; drops the rightmost keys but the last two (help and quit) where there is no room."""

    def __init__(self, keys: list[Key]) -> None:
        super().__init__(id="keys")
        self.keys: list[Key] = []
        self.put(keys)

    def put(self, keys: list[Key]) -> None:
        """Show these keys, MAX_KEYS of them: where there are more, those before the last two go."""
        keys = [*keys[: MAX_KEYS - 2], *keys[-2:]] if len(keys) > MAX_KEYS else keys
        if keys != self.keys:
            self.keys = keys
            self.refresh()

    def render(self) -> Content:
        """Key and label of those that fit."""
        parts = [Content.assemble((key, "bold $accent"), (f" {label}", "$muted")) for key, label, _ in self._fitting()]
        return Content("  ").join(parts)

    def _fitting(self) -> list[Key]:
        keys = list(self.keys)
        while len(keys) > 2 and sum(len(key) + len(label) + 3 for key, label, _ in keys) - 2 > self.size.width:
            keys.pop(-3)
        return keys

    async def on_click(self, event: Click) -> None:
        """Run the action of the key under the pointer."""
        offset = event.get_content_offset(self)
        end = -2
        for key, label, action in self._fitting():
            end += len(key) + len(label) + 3
            if offset is not None and offset.x < end:
                if action:
                    await self.run_action(action)
                return
