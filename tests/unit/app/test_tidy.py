"""What a dashboard that lives for weeks lets go of."""

from __future__ import annotations

from rich.cells import cached_cell_len, cell_len

from sapo_desktop.commands.nodes.dashboard import release_memory


def test_lines_that_are_gone_from_the_screen_are_let_go_of() -> None:
    cell_len("a line that is shown once")
    assert cached_cell_len.cache_info().currsize
    release_memory()
    assert not cached_cell_len.cache_info().currsize
