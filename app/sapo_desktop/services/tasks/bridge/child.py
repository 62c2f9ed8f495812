"""The environment's side of the bridge: runs in the environment's own Python, which has `verifiers` and nothing of this app.

The job comes as one JSON object on stdin, so that the endpoint's token is in no process list; each rollout goes out as one
JSON line on stdout, after MARK, because environments print too.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from typing import Any

MARK = "\x1esapo "
TOKEN = "SAPO_BRIDGE_TOKEN"
LONGEST = 8000


def emit_message(kind: str, **values: Any) -> None:
    """Send one line to the app."""
    print(MARK + json.dumps({"kind": kind, **values}), flush=True)


def resolve_environment(name: str, arguments: dict[str, Any]) -> Any:
    """Resolve `package` with load_environment(), or `module:Class`."""
    module, _, attribute = name.partition(":")
    if attribute:
        return getattr(importlib.import_module(module), attribute)(**arguments)
    return importlib.import_module("verifiers").load_environment(name, **arguments)


def text_of(messages: Any) -> str:
    """The assistant's and the environment's turns as text."""
    if isinstance(messages, str):
        return messages
    return "\n".join(f"{part.get('role', '')}: {part.get('content', '')}" for part in map(dict, messages or ()))


def client_config(url: str) -> Any:
    """How verifiers reaches the model."""
    return importlib.import_module("verifiers.types").ClientConfig(api_base_url=url, api_key_var=TOKEN)


async def run_evaluation(job: dict[str, Any]) -> None:
    """Run the evaluation and report every rollout."""
    environment = resolve_environment(job["environment"], job["arguments"])
    sampling = {"temperature": job["temperature"], "max_tokens": job["max_tokens"]}
    results = await environment.evaluate(
        client=client_config(job["url"]),
        model=job["model"],
        sampling_args=sampling,
        num_examples=job["items"],
        rollouts_per_example=job["samples"],
        max_concurrent=4,
    )
    for output in results["outputs"]:
        error = output.get("error")
        emit_message(
            "rollout",
            reward=float(output.get("reward") or 0.0),
            prompt=text_of(output.get("prompt"))[:LONGEST],
            completion=text_of(output.get("completion"))[:LONGEST],
            error="" if error is None else str(error)[:500],
        )


def main() -> int:
    """Exit code 0 when every rollout was reported."""
    job = json.loads(sys.stdin.readline())
    os.environ[TOKEN] = job.pop("token")
    try:
        verifiers = importlib.import_module("verifiers")
    except ImportError as error:
        emit_message("failed", reason=f"This Python has no verifiers ({error}).")
        return 1
    if not hasattr(verifiers, "load_environment"):
        emit_message(
            "failed", reason=f"verifiers {verifiers.__version__} has another interface; install verifiers==0.1.14."
        )
        return 1
    try:
        asyncio.run(run_evaluation(job))
    except Exception as error:  # an environment may raise anything
        emit_message("failed", reason=f"{type(error).__name__}: {error}"[:500])
        return 1
    emit_message("done", version=str(getattr(verifiers, "__version__", "")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
