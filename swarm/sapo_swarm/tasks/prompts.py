"""How a question becomes the conversation that a model continues."""

from __future__ import annotations

SYSTEM_PROMPT = (
    "Solve the problem. Think in short steps, then give only the final answer between <answer> and </answer> tags."
)
"""The bundled starter's chat template leaves it out: it was trained on nothing else."""


def messages(question: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}]


def extract_answer(text: str) -> str | None:
    """The text of the last `<answer>...</answer>`, stripped, or None. Linear in the length of the text."""
    end = text.rfind("</answer>")
    if end < 0:
        return None
    start = text.rfind("<answer>", 0, end)
    return None if start < 0 else text[start + len("<answer>") : end].strip()
