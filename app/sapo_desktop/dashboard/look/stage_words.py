"""What a round's stage did, in words: hints of others, or corrected attempts."""

from __future__ import annotations

from collections.abc import Mapping

SECOND = {
    "relay": "a question that others solved",
    "relay/shown": "generated again with a hint of others",
    "relay_start": "a question that others solved",
    "relay_start/shown": "begun with a hint of others",
    "retry": "a question that others solved",
    "retry/shown": "generated again",
    "critique/shown": "after a wrong attempt that was shown",
}
"""Group.stage -> what it means, beside a group."""


def stage_words(figures: Mapping[str, float]) -> str:
    """Of a round's figures; "" where it had no stage, or nothing to work on."""
    count = {name: round(figures.get(f"stage_{name}", 0.0)) for name in ("attempted", "hinted", "revived", "corrected")}
    if "stage_corrected" in figures and count["attempted"]:
        return f"{count['corrected']} of {count['attempted']} wrong attempts corrected after a look at them"
    if count["hinted"]:
        return f"all attempts had failed at {count['hinted']} that others solved: {count['revived']} solved with a hint"
    return f"{count['attempted']} questions of others attempted, no hint needed" if count["attempted"] else ""
