"""The lab's page: its links lead somewhere, it names every kept record, and it stays one page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sapo_lab.report.saved_runs import FILE

LAB = Path(__file__).parents[3] / "docs" / "lab"
PAGES = sorted(LAB.rglob("*.md"))
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(LAB)))
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text("utf-8")) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(LAB)))
def test_no_line_but_those_of_tables_is_longer_than_120_columns(page: Path) -> None:
    assert [line for line in page.read_text("utf-8").splitlines() if len(line) > 120 and line[0] != "|"] == []


def test_nothing_lies_in_the_folders_but_records_and_an_experiment_of_other_code() -> None:
    """A report is made anew from its record; its prose would say the same twice."""
    assert {path.suffix for folder in LAB.iterdir() if folder.is_dir() for path in folder.iterdir()} <= {
        ".zst",
        ".toml",
    }
    assert all((folder / FILE).exists() for folder in LAB.iterdir() if folder.is_dir())


def test_what_the_lab_found_is_one_page_with_one_table_that_says_what_is_withdrawn() -> None:
    page = (LAB / "README.md").read_text("utf-8")
    assert [path.name for path in PAGES] == ["README.md"]
    assert len(page.split()) <= 1_700
    assert len(re.findall(r"^\|[-|]+\|$", page, re.M)) == 1
    assert "## Withdrawn\n\n**Everything before" in page
    assert page.index("## On a real model") < page.index("## Withdrawn"), "what holds comes first"
