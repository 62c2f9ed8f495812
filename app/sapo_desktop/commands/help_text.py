"""The format of --help: the verbs in groups, and after each verb's help its most common examples."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Collection, Mapping

EXAMPLES: dict[str, tuple[str, ...]] = {
    "node": ("node --silo --rounds 200", "node maths --tasks basic_arithmetic,bf", "node --join -"),
    "coordinator": (
        "coordinator --host 0.0.0.0 --name friends --approve",
        "coordinator --host 0.0.0.0 --open --list --public swarm.example.org",
    ),
    "invite": ("invite --label Bo --uses 1", "invite list", "invite revoke Bo"),
    "ban": ("ban qmf4 --reason spam", "ban qmf4 --lift"),
    "swarm": ("swarm", "swarm approve", "swarm export friends.swarm"),
    "contribute": ("contribute --answer --questions 5",),
    "leave": ("leave",),
    "stay": ("stay",),
    "directory": ("directory add https://example.org/swarms#key=…", "directory", "directory new swarms.json"),
    "status": ("status", "status --watch", "status --json"),
    "pause": ("pause",),
    "resume": ("resume",),
    "finish": ("finish",),
    "snooze": ("snooze --for 30m",),
    "run-anyway": ("run-anyway", "run-anyway --off"),
    "stop": ("stop",),
    "service": ("service install maths --preset eco", "service status", "service uninstall"),
    "external": ("external off",),
    "login": ("login", "login --out"),
    "new": ("new maths --base starter", "new coach --base HuggingFaceTB/SmolLM2-135M-Instruct --tasks my_codes"),
    "eval": ("eval maths --items 300", "eval maths --before 50 --after latest"),
    "compare": ("compare maths", "compare maths coach"),
    "chat": ("chat maths", "chat maths --questions 20", 'chat maths "What is 17 + 25?"'),
    "export": ("export maths --format gguf --quant q8_0", "export maths --format hf --to maths-hf"),
    "serve-model": ("serve-model maths --port 8080",),
    "runs": ("runs maths", "runs check maths --repair"),
    "rollback": ("rollback maths", "rollback maths --to best-greedy", "rollback maths --to 40"),
    "rollouts": ("rollouts --reward mixed --task bf", "rollouts maths --text prime -o found.jsonl"),
    "backup": ("backup mine.tar", "backup mine.tar --keys"),
    "restore": ("restore mine.tar --list", "restore mine.tar"),
    "uninstall": ("uninstall --data",),
    "models": ("models", "models show maths", "models figures maths -o maths.csv"),
    "tasks": ("tasks", "tasks new codes.csv", "tasks check codes", "tasks delete codes"),
    "config": ("config get", "config set limits.nice 15", "config preset eco"),
    "paths": ("paths",),
    "bench": ("bench", "bench starter-1m --quick", "bench --verify"),
    "doctor": ("doctor",),
    "serve": ("serve",),
    "replay": ("replay maths --speed 50", "replay maths --from 50%"),
    "tour": ("tour",),
}


class ExamplesFormatter(argparse.HelpFormatter):
    """Wraps paragraphs as argparse does, but keeps the lines of the examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return "\n".join(indent + line for line in text.splitlines())
        return super()._fill_text(text, width, indent)


def examples_epilog(verb: str) -> str:
    """The examples of a verb, one per line."""
    return "examples:\n" + "\n".join(f"  sapo-desktop {line}" for line in EXAMPLES[verb])


def grouped_formatter(
    groups: Mapping[str, Mapping[str, tuple[str, str]]], rare: Collection[str]
) -> type[argparse.RawDescriptionHelpFormatter]:
    """A formatter that lists verbs under their group names. groups: name -> verb -> (module, line of help). rare: verbs
    that are listed without their line of help."""

    class GroupedFormatter(argparse.RawDescriptionHelpFormatter):
        def _format_action(self, action: argparse.Action) -> str:
            if not isinstance(action, argparse._SubParsersAction):
                return super()._format_action(action)
            column = 2 + max(len(verb) for verbs in groups.values() for verb in verbs if verb not in rare)
            text = ""
            for name, verbs in groups.items():
                text += f"\n  {name}\n"
                for verb, (_, line) in verbs.items():
                    if verb not in rare:
                        text += self._line(f"{verb:<{column}}", line)
                if named := [verb for verb in verbs if verb in rare]:
                    text += self._line(f"{'also':<{column}}", ", ".join(named))
            return f"{text}\n  sapo-desktop VERB --help says more about each.\n"

        def _line(self, head: str, line: str) -> str:
            start = f"    {head}"
            return textwrap.fill(line, self._width, initial_indent=start, subsequent_indent=" " * len(start)) + "\n"

    return GroupedFormatter
