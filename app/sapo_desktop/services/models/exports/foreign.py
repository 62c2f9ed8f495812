"""In a child process: load an export with the library it is for, as its users do, and answer greedily."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from typing import Any

from sapo_backends.checkpoints.chat_template import PLAIN
from sapo_desktop.services.models.exports.formats import PACKAGES
from sapo_desktop.services.models.exports.job import LibraryMissing, ReadJob, ReadResult

Chat = list[dict[str, str]]
Answer = tuple[list[int], list[int]]
"""(prompt ids, answer ids)."""
Reader = Callable[[ReadJob], Iterator[Answer]]
NEEDED = {"transformers": ("torch",), "peft": ("torch", "transformers")}
"""Packages that a library needs to load a model."""
AS_DATA = {"use_safetensors": True, "local_files_only": True, "trust_remote_code": False}
"""No pickle, no network, no code from a folder."""
CONTEXT = 8192
"""Context length where an adapter is read on the person's own file, which may allow a much longer one."""
SECONDS = 240.0
"""After this, only the answers so far are compared: a large model on a processor takes minutes for twenty."""


def answer_with_library(job: ReadJob, report: Callable[[float, str], None]) -> ReadResult | LibraryMissing:
    """The library's answers to the chats, in order, as many as the time allows; LibraryMissing when it is not installed."""
    package = PACKAGES[job.library]
    try:
        versions = [version(name) for name in (package, *NEEDED.get(job.library, ()))]
    except PackageNotFoundError:
        return LibraryMissing()
    report(0.0, f"loading it with {package}")
    answers: list[Answer] = []
    until = time.monotonic() + SECONDS
    for answer in READERS[job.library](job):
        answers.append(answer)
        report(len(answers) / len(job.chats), f"{package} answers {len(answers)} of {len(job.chats)}")
        if time.monotonic() > until:
            break
    return ReadResult(versions[0], answers)


def _transformers(job: ReadJob) -> Iterator[Answer]:
    import torch
    from transformers import AutoModelForCausalLM

    return _by_torch(AutoModelForCausalLM.from_pretrained(job.path, dtype=torch.float32, **AS_DATA), job)


def _peft(job: ReadJob) -> Iterator[Answer]:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(job.base, dtype=torch.float32, **AS_DATA)
    return _by_torch(PeftModel.from_pretrained(base, job.path), job)


def _by_torch(model: Any, job: ReadJob) -> Iterator[Answer]:
    """Answers by any model with transformers' interface, with its own end tokens and the tokenizer in its folder."""
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(job.path, local_files_only=True, trust_remote_code=False)
    end = model.generation_config.eos_token_id
    ends = {end} if isinstance(end, int) else set(end or ())
    model.eval()

    def step(ids: list[int], cache: Any) -> tuple[int, Any]:
        with torch.inference_mode():
            output = model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True)
        return int(output.logits[0, -1].argmax()), output.past_key_values

    for chat in job.chats:
        prompt = _ids(tokenizer, chat, job.thinking)
        yield prompt, _until_end(step, prompt, ends, job.tokens, None)


def _mlx_lm(job: ReadJob) -> Iterator[Answer]:
    import mlx.core as mx
    from mlx_lm import load
    from mlx_lm.models.cache import make_prompt_cache

    import sapo_backends.mlx_backend  # noqa: F401 - before the first matrix product: float32 stays float32

    model, tokenizer = load(job.path, tokenizer_config={"trust_remote_code": False})[:2]

    def step(ids: list[int], cache: Any) -> tuple[int, Any]:
        return int(model(mx.array([ids]), cache=cache)[0, -1].argmax().item()), cache

    for chat in job.chats:
        prompt = _ids(tokenizer, chat, job.thinking)
        yield prompt, _until_end(step, prompt, set(tokenizer.eos_token_ids), job.tokens, make_prompt_cache(model))


def _ids(tokenizer: Any, chat: Chat, thinking: bool) -> list[int]:
    """Token ids by the chat template as these libraries apply it."""
    options = {"add_generation_prompt": True, "enable_thinking": thinking}
    text = tokenizer.apply_chat_template(chat, tokenize=False, **options)
    return list(tokenizer.encode(text, add_special_tokens=False))


def _until_end(
    step: Callable[[list[int], Any], tuple[int, Any]], prompt: list[int], ends: set[int], tokens: int, cache: Any
) -> list[int]:
    """Greedy tokens, the end token included, from step(new ids, cache) -> (next token, cache)."""
    answer: list[int] = []
    fed = prompt
    while len(answer) < tokens and not (answer and answer[-1] in ends):
        token, cache = step(fed, cache)
        answer.append(token)
        fed = [token]
    return answer


def _llama_cpp(job: ReadJob) -> Iterator[Answer]:
    import llama_cpp
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    _without_repacking()
    model = llama_cpp.Llama(job.path, n_ctx=CONTEXT if job.adapter else 0, verbose=False, lora_path=job.adapter or None)
    vocabulary = llama_cpp.llama_model_get_vocab(model.model)
    first = model.token_bos()
    bos = llama_cpp.llama_vocab_get_text(vocabulary, first).decode() if first >= 0 else ""
    template = model.metadata.get("tokenizer.chat_template") or bos + PLAIN
    chat_text = Jinja2ChatFormatter(template, eos_token="", bos_token=bos)
    for chat in job.chats:
        text = chat_text(messages=chat, enable_thinking=job.thinking).prompt
        prompt = model.tokenize(text.encode(), add_bos=False, special=True)
        answer: list[int] = []
        for token in islice(model.generate(prompt, temp=0.0, repeat_penalty=1.0), job.tokens):
            answer.append(int(token))
            if llama_cpp.llama_vocab_is_eog(vocabulary, token):
                break
        yield list(prompt), answer


def _without_repacking() -> None:
    """llama-cpp-python 0.3.36 crashes in its repacked buffers with quantised weights on processors with AMX; its class has no
    argument for it, and this process ends after the check."""
    from llama_cpp import llama_cpp as native

    defaults = native.llama_model_default_params

    def without() -> Any:
        parameters = defaults()
        parameters.use_extra_bufts = False
        return parameters

    native.llama_model_default_params = without


READERS: dict[str, Reader] = {
    "transformers": _transformers,
    "peft": _peft,
    "llama_cpp": _llama_cpp,
    "mlx_lm": _mlx_lm,
}
