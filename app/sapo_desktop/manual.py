"""Generates docs/manual.md from the verbs, keys, glossary and settings schema: python -m sapo_desktop.manual > docs/manual.md"""

from __future__ import annotations

from collections.abc import Iterator

from sapo_desktop import key_table, settings
from sapo_desktop.cli import GROUPS
from sapo_desktop.dashboard.look import LISTS
from sapo_desktop.dashboard.screens.help import WORDS
from sapo_swarm.events import STATES

CODES = ("0 ok", "1 error", "2 wrong usage", "3 no node is running", "4 no engine for it is installed")


def manual_lines() -> Iterator[str]:
    """The manual, line by line."""
    yield "# Manual\n"
    yield "Made from the code by `python -m sapo_desktop.manual`; a test keeps it so.\n"
    yield "## Verbs\n"
    yield "`sapo-desktop` alone opens the dashboard. `sapo-desktop VERB --help` explains every flag.\n"
    for group, verbs in GROUPS.items():
        yield f"\n**{group}**\n\n| verb | what it does |\n|---|---|"
        yield from (f"| `{verb}` | {text} |" for verb, (_, text) in verbs.items())
    yield f"\nExit codes: {', '.join(CODES)}.\n"
    yield "## Keys of the dashboard\n"
    yield f"Made from the bindings. {LISTS}\nA click on a key in the last line presses it.\n"
    yield from key_table.key_table_lines()
    yield f"\nA node is in one of these states: {', '.join(STATES)}.\n"
    yield "## Words\n"
    yield "As the dashboard's help (`?`) has them.\n"
    yield "| word | meaning |\n|---|---|"
    yield from (f"| {word} | {meaning} |" for word, meaning in WORDS)
    yield "\n## Settings\n"
    yield "In `config.toml` (`sapo-desktop config path`), as flags of `node`, or by `sapo-desktop config set KEY VALUE`."
    yield "`run.*` counts for new models; an existing one keeps its own: `node NAME --temperature 0.9`.\n"
    yield "| key | what it is | kind | default |\n|---|---|---|---|"
    for field in settings.setting_fields():
        default = settings.format_value(field.default).replace(",", ", ")
        kind = field.kind.replace("|", " or ")
        yield f"| `{field.key}` | {field.help} | {kind} | {default if default != '' else '(empty)'} |"
    yield "\n`SAPO_HOME=FOLDER` moves settings, runs, logs and the socket into one folder."


def render_manual() -> str:
    """The whole page, as docs/manual.md has it."""
    return "\n".join(manual_lines()) + "\n"


if __name__ == "__main__":
    print(render_manual(), end="")
