"""The lab's pages: links and figures lead somewhere, nothing lies about unused, lines are short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import sapo_assets
from sapo_lab.schema import load

LAB = Path(__file__).parents[3] / "docs" / "lab"
PAGES = sorted(LAB.rglob("*.md"))
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(LAB)))
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text("utf-8")) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_figure_is_on_a_page() -> None:
    shown = {(page.parent / link).resolve() for page in PAGES for link in LINK.findall(page.read_text("utf-8"))}
    assert [str(path) for path in LAB.rglob("*.png") if path.resolve() not in shown] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(LAB)))
def test_no_line_but_those_of_tables_is_longer_than_120_columns(page: Path) -> None:
    long = [line for line in page.read_text("utf-8").splitlines() if len(line) > 120 and not line.startswith("|")]
    assert [line for line in long if not line.startswith("    sapo-desktop")] == []


def test_the_docs_name_every_experiment_that_ships_and_its_size() -> None:
    lines = (LAB / "experiments.md").read_text("utf-8").splitlines()
    for name, path in sapo_assets.experiments().items():
        experiment = load(path)
        size = f"{len(experiment.arms)} x {len(experiment.seeds)}"
        assert any(f"`{name}`" in line and f"| {size} |" in line for line in lines), f"{name} {size}"
        assert name == "smoke" or (LAB / name / "README.md").exists()


def test_what_the_lab_found_is_one_page_with_one_figure_and_one_table() -> None:
    page = (LAB / "README.md").read_text("utf-8")
    assert len(page.splitlines()) <= 80
    assert page.count("![") == 1
    assert len(re.findall(r"^\|[-|]+\|$", page, re.M)) == 1
