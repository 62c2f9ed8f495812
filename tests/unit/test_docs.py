"""What the documents say exists: paths, links, verbs and flags; and no line is too long to read."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from sapo_desktop.cli import VERBS, build_parser

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if "lab" not in path.relative_to(ROOT).parts or path.parent == ROOT / "docs" / "lab"
)
"""Every page but the lab's generated reports."""
WIDTH = 120
SOURCES = (
    "app/sapo_desktop",
    "swarm/sapo_swarm",
    "swarm/sapo_lab",
    "backends/sapo_backends",
    "assets",
    "tests",
    "docs",
    "packaging",
)
LOOKS_LIKE_A_PATH = re.compile(r"[\w.-]+(/[\w.-]+)*(/|\.(py|md|toml|json|c|h|tcss|sh))")
NOT_OURS = {
    "config.json",
    "state.json",
    "engine.json",
    "speed.json",
    "tokenizer.json",
    "config.toml",
    "model.json",
    "runs/",
    "reward.py",
    "shared-tasks.json",
    "evaluations/",
    "checkpoints/",
}
"""Files of a run, a model or a person."""


def read(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def prose(text: str) -> str:
    """Without fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


@cache
def endings() -> frozenset[str]:
    """Every path of the sources with each of its endings: a/b/c.py, b/c.py, c.py; folders too, with a slash."""
    found: set[str] = set()
    for source in SOURCES:
        for path in [ROOT / source, *(ROOT / source).rglob("*")]:
            if "__pycache__" in path.parts:
                continue
            parts = path.relative_to(ROOT).parts
            found |= {"/".join(parts[start:]) + ("/" if path.is_dir() else "") for start in range(len(parts))}
    return frozenset(found)


def test_every_path_in_backticks_exists() -> None:
    missing = []
    for page in PAGES:
        words = {word for word in re.findall(r"`([^`\n]+)`", prose(read(page))) if LOOKS_LIKE_A_PATH.fullmatch(word)}
        missing += [
            f"{page}: {word}"
            for word in words - NOT_OURS
            if not (ROOT / word).exists()
            and not {word, f"{word.rstrip('/')}/"} & endings()
            and not word.startswith("cache/")
        ]
    assert missing == []


def test_every_link_leads_somewhere() -> None:
    broken = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", prose(read(page))):
            if link.startswith(("http://", "https://")):
                continue
            path, _, section = link.partition("#")
            target = (ROOT / page).parent / path if path else ROOT / page
            if not target.exists() or (section and section not in anchors(target)):
                broken.append(f"{page}: {link}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The headings as GitHub makes links of them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_no_line_is_wider_than_a_screen_but_tables() -> None:
    """Mend it with: python packaging/wrap_docs.py"""
    lines = [(page, line) for page in PAGES if page != "docs/manual.md" for line in read(page).splitlines()]
    assert [(page, line) for page, line in lines if len(line) > WIDTH and not line.startswith(("|", "!["))] == []


@cache
def flags_of(verb: str) -> frozenset[str]:
    """Every flag of the verb, by its own parser."""
    subs = next(a for a in build_parser(verb)._actions if isinstance(a, argparse._SubParsersAction))
    return frozenset(flags_in(subs.choices[verb]))


def flags_in(found: argparse.ArgumentParser) -> Iterator[str]:
    for action in found._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from flags_in(inner)


def test_every_command_has_a_verb_and_flags_that_exist() -> None:
    wrong = []
    for page in PAGES:
        commands = re.findall(r"\bsapo-desktop ([a-z][a-z-]*)((?:[ \t]+[^\s`|;#)]+)*)", read(page))
        wrong += [f"{page}: {verb}" for verb, _ in commands if verb not in VERBS and verb not in NO_VERBS]
        wrong += [
            f"{page}: {verb} {flag}"
            for verb, rest in commands
            if verb in VERBS
            for flag in re.findall(r"(?<=\s)--[a-z][a-z-]*", rest)
            if flag not in flags_of(verb)
        ]
    assert wrong == []


def test_no_recipe_gives_the_model_that_is_here_another_base_method_or_task() -> None:
    """`node` without a name goes on with the model one has."""
    recipe = re.compile(r"sapo-desktop node (?:--silo )?--(?:model|method|tasks)\b.*")
    assert [(page, match) for page in PAGES for match in recipe.findall(read(page))] == []


def test_no_hint_in_the_code_does_either() -> None:
    sources = [path for source in SOURCES[:4] for path in (ROOT / source).rglob("*.py")]
    refused = re.compile(r"sapo-desktop node --[^\"\n]*--(?:model|method)\b")
    assert [str(path) for path in sources if refused.search(path.read_text("utf-8"))] == []


OTHER_PROGRAMS = re.compile(r"pip install|xcode-select|llama-server")


def test_every_flag_in_a_sentence_of_the_code_exists() -> None:
    """A hint such as "use --trainer torch"."""
    known = frozenset[str]().union(*map(flags_of, VERBS))
    wrong = []
    for path in (path for source in SOURCES[:4] for path in (ROOT / source).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if not OTHER_PROGRAMS.search(text):
                flags = re.findall(r"(?<=[a-z,] )--[a-z][a-z-]*", text)
                wrong += [f"{path.name}: {flag} in {text!r}" for flag in flags if flag not in known]
    assert not wrong


def test_nothing_is_installed_by_the_name_of_the_app_which_is_on_no_index() -> None:
    hints = [path for source in SOURCES[:5] for path in (ROOT / source).rglob("*.py")]
    by_name = re.compile(r"""(pip|pipx|tool) install +['"]?sapo-desktop(\[\w+\])?['"]?(?! @)""")
    assert [str(path) for path in [*hints, *map(ROOT.joinpath, PAGES)] if by_name.search(path.read_text("utf-8"))] == []


NO_VERBS = {"is", "does", "may", "or", "and", "knows"}
"""Words that follow the name in a sentence."""


def test_the_manual_has_every_verb() -> None:
    assert set(re.findall(r"^\| `([a-z-]+)` \|", read("docs/manual.md"), flags=re.MULTILINE)) >= set(VERBS)


def test_the_index_of_decisions_has_every_page_by_its_heading() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    heads = {page.name: page.read_text("utf-8").partition("\n")[0] for page in pages}
    rows = re.findall(r"^- (\d+)\. \[(.+)\]\((\S+)\)$", read("docs/decisions/README.md"), flags=re.MULTILINE)
    assert {name: f"# {number}. {title}" for number, title, name in rows} == heads


def test_the_drawn_rooms_are_the_rooms() -> None:
    """Mend it with: python packaging/rooms.py"""
    spec = importlib.util.spec_from_file_location("rooms", ROOT / "packaging" / "rooms.py")
    assert spec is not None
    assert spec.loader is not None
    rooms = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rooms)
    page = read("docs/contributing.md")
    assert rooms.drawn(page) == page


def test_the_ten_files_to_read_first_exist_once_each() -> None:
    listed = re.findall(r"^\d+\. `([^`]+\.py)`", read("docs/contributing.md"), flags=re.MULTILINE)
    assert len(set(listed)) == 10
    assert [file for file in listed if not (ROOT / file).is_file()] == []
