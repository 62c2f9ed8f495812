"""The doctor as a dialog: the same checks as `sapo-desktop doctor`, told as they come in."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from sapo_desktop.dashboard.host import Examine
from sapo_desktop.dashboard.look.glyphs import Glyphs
from sapo_desktop.dashboard.look.show import hang, plain
from sapo_desktop.dashboard.screens.dialogs import TextDialog
from sapo_desktop.errors import known
from sapo_desktop.services.machine.finding import COLUMN, Finding

_LABEL = COLUMN + 3
_STYLES = {"ok": "$success", "note": "$muted", "fail": "bold $error"}
_VERDICTS = {0: "Nothing needs mending.", 1: "One thing does not work: its line says what to do."}


class DoctorScreen(TextDialog):
    """Findings as they come, the good and the bad."""

    TITLE = "Doctor"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,d", "dismiss", "close", show=False)]

    def __init__(self, examine: Examine, glyphs: Glyphs) -> None:
        super().__init__()
        self._examine, self._glyphs = examine, glyphs
        self.findings: list[Finding] = []
        self.verdict = "Looking …"

    def on_mount(self) -> None:
        """Begin to examine."""
        self.run_worker(self._look(), name="doctor", exit_on_error=True)

    async def _look(self) -> None:
        try:
            async for finding in self._examine():
                self.findings.append(finding)
                self.draw()
        except known() as error:
            self.verdict = str(error)
        else:
            failed = sum(finding.verdict == "fail" for finding in self.findings)
            self.verdict = _VERDICTS.get(failed, f"{failed} things do not work: their lines say what to do.")
        self.draw()

    def text(self, width: int) -> Content:
        """The verdict and the findings so far."""
        rows = [Content.styled(hang(plain(self.verdict, 300), width, 0), "bold"), Content("")]
        rows += [finding_line(finding, width, self._glyphs) for finding in self.findings]
        return Content("\n").join(rows)


def finding_line(finding: Finding, width: int, glyphs: Glyphs) -> Content:
    """Mark, what was looked at, what was found; the mark says without colour how it is."""
    mark = {"ok": glyphs.done, "note": glyphs.todo, "fail": glyphs.bad}[finding.verdict]
    return Content.assemble(
        (f"{mark} {finding.what:<{COLUMN}} ", _STYLES[finding.verdict]),
        hang(plain(finding.text, 600), width, _LABEL),
    )
