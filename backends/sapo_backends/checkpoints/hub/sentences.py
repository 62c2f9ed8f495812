"""What is said about a download: how far it is, and why the hub gave nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sapo_backends.checkpoints.hub import access, cache
from sapo_backends.errors import DownloadFailed, ModelNotFound, size_text


@dataclass
class Progressed:
    """done, total: bytes of all files. begun: bytes that were there before, when: monotonic seconds."""

    repository: str
    total: int
    done: int
    begun: int
    when: float

    @property
    def phrase(self) -> str:
        """ "downloading owner/name: 46 MB of 270 MB, 17 %, 3.1 MB/s, about 72 s left"."""
        seconds, share = time.monotonic() - self.when, self.done / max(1, self.total)
        text = f"downloading {self.repository}: {size_text(self.done)} of {size_text(self.total)}, {100 * share:.0f} %"
        rate = (self.done - self.begun) / seconds if seconds > 1 else 0.0
        if rate <= 0:
            return text
        left = (self.total - self.done) / rate
        return (
            f"{text}, {size_text(rate)}/s, about {left / 60:.0f} min left"
            if left >= 120
            else (f"{text}, {size_text(rate)}/s, about {left:.0f} s left")
        )


class Away(DownloadFailed):
    """The hub is not there now."""


def refused(repository: str, status: int, code: str, named: bool) -> Exception:
    """What an answer that is no success means. code: the hub's own word for it. named: a token was shown."""
    where = f"{access.endpoint()}/{repository}"
    if code == "GatedRepo":
        log_in = "With the account of your token" if named else "Log in: sapo-desktop login. Before that"
        return ModelNotFound(
            f"{repository} is gated: its owner lets people in by name. {log_in}, accept its terms at {where}"
        )
    if status in (401, 403, 404):
        again = "Your token may not see it either." if named else "If it is private, log in: sapo-desktop login"
        return ModelNotFound(f"There is no public model {repository!r} at {access.endpoint()}. Check the name. {again}")
    text = f"{access.endpoint()} answers with error {status} for {repository}"
    return Away(text) if status >= 500 or status in (408, 429) else DownloadFailed(f"{text}.")


def offline(repository: str, reason: str) -> str:
    """What is on this disk, when the network is not there."""
    here = [one.repository for one in cache.all_cached() if one.complete]
    known = f"On this disk: {', '.join(here[:8])}, and" if here else "Use"
    return f"{repository!r} is not downloaded and {reason}. Connect once to download it. {known} the bundled 'starter'."
