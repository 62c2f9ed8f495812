"""Completions and the manual page: every verb and flag, read by the programs that they are for where these are here."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sapo_desktop import __version__, cli
from sapo_desktop.services import terminal_files


@pytest.fixture(scope="module")
def flags() -> dict[str, set[str]]:
    """Of every verb, its long flags that are shown."""
    return {
        name: {flag for action in verb._actions if action.help != argparse.SUPPRESS for flag in action.option_strings}
        for name, _, verb in terminal_files.walk_verbs(cli.build_parser())
    }


@pytest.fixture
def written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Path]:
    files = {}
    for kind in ("bash", "zsh", "fish", "man"):
        assert cli.run_command_line(["--print", kind]) == 0
        files[kind] = tmp_path / kind
        files[kind].write_text(capsys.readouterr().out)
    return files


def test_no_flag_takes_a_value_only_sometimes_for_it_would_take_the_word_of_the_verb_that_follows() -> None:
    def loose(of: argparse.ArgumentParser) -> Iterator[str]:
        for action in of._actions:
            if isinstance(action, argparse._SubParsersAction):
                for inner in action.choices.values():
                    yield from loose(inner)
            elif action.option_strings and action.nargs in ("?", "*", "+"):
                yield f"{of.prog} {action.option_strings[0]}"

    assert list(loose(cli.build_parser())) == []


def completed(file: Path, *words: str) -> set[str]:
    """What bash offers for the last word."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = f'source "{file}"; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _shtab_sapo_desktop; '
    script += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=file.parent)
    return set(done.stdout.split())


@pytest.mark.skipif(not shutil.which("bash"), reason="bash")
def test_bash_completes_verbs_flags_and_their_values(written: dict[str, Path], flags: dict[str, set[str]]) -> None:
    bash = written["bash"]
    assert completed(bash, "sapo-desktop", "") == set(cli.VERBS)
    assert completed(bash, "sapo-desktop", "serv") == {"service", "serve", "serve-model"}
    assert completed(bash, "sapo-desktop", "--linear", "mo") == {"models"}
    assert completed(bash, "sapo-desktop", "service", "un") == {"uninstall"}
    assert completed(bash, "sapo-desktop", "service", "--preset", "") == {"eco", "balanced", "full"}
    assert completed(bash, "sapo-desktop", "export", "--to", "") >= {"bash", "zsh"}, "files"
    for verb, named in flags.items():
        long = {flag for flag in named if flag.startswith("--")}
        assert completed(bash, "sapo-desktop", *verb.split(), "--") == long


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_find_no_mistake_in_theirs(
    written: dict[str, Path], flags: dict[str, set[str]], shell: str
) -> None:
    text = written[shell].read_text()
    for verb, named in flags.items():
        assert all(word in text for word in verb.split())
        assert all(flag.lstrip("-") in text for flag in named)
    if found := shutil.which(shell):
        subprocess.run([found, "-n", written[shell]], check=True)


def test_the_manual_page_names_every_verb_and_flag_and_this_version(
    written: dict[str, Path], flags: dict[str, set[str]]
) -> None:
    text = written["man"].read_text()
    assert f"sapo-desktop {__version__}" in text.splitlines()[0]
    for verb, named in flags.items():
        assert f".SS {verb}".replace("-", "\\-") in text
        assert all(flag.replace("-", "\\-") in text for flag in named)
    if groff := shutil.which("groff"):
        done = subprocess.run(
            [groff, "-man", "-Tutf8", "-ww", "-z", written["man"]], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
