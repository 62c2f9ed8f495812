"""The training loop: lines of several examples side by side, Muon for matrices and AdamW for the rest.

Loss is taken on the completion, and on the solved examples of an arc_1d prompt.
"""

from __future__ import annotations

import json
import math
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Encoding, Tokenizer
from torch import Tensor
from torch.nn import functional as F

from recipe.data import Example
from recipe.mixture import HARDER, Stages, weights_at
from recipe.model import Qwen2
from recipe.tokenizer import END, STOP, prompt_text, token_id


@dataclass(frozen=True)
class Plan:
    """Settings of one run. minutes: on which the learning-rate schedule is laid, of processor time with one thread
    on a CPU (a busy machine then only takes longer), otherwise of wall time.

    polish: minutes of a second schedule after the first, with fresh optimizers, other weights of the tasks and
    polish_rate times the learning rates: small, so that what is known stays known.
    half: products in bfloat16. compiled: torch.compile, which needs a C++ compiler and is 1.3 to 1.4 times as fast.
    """

    minutes: float
    width: int = 256
    height: int = 16
    muon_lr: float = 0.01
    adam_lr: float = 2e-3
    warm_up: float = 0.02
    decay: float = 0.35
    seed: int = 0
    threads: int = 1
    half: bool = True
    compiled: bool = False
    checkpoint_minutes: float = 5.0
    polish: float = 0.0
    polish_rate: float = 0.5

    def at(self, seconds: float) -> tuple[bool, float]:
        """Whether the polish has begun, and the share that is done of its schedule or of the first."""
        main = self.minutes * 60
        if seconds < main or not self.polish:
            return False, seconds / main
        return True, (seconds - main) / (self.polish * 60)


@dataclass(frozen=True)
class Row:
    """Token ids of one example, and the spans [from, to) of tokens that a loss is taken on."""

    ids: np.ndarray[tuple[int], np.dtype[np.uint16]]
    spans: tuple[tuple[int, int], ...]


_SHOWN = re.compile(r"(?<=Output:)[^\n]*\n")
"""The solved examples in an arc_1d prompt: more rows to learn from, at no cost."""


def _shown_spans(prompt: Encoding, text: str) -> list[tuple[int, int]]:
    found = []
    for match in _SHOWN.finditer(text):
        inside = [n for n, (begin, end) in enumerate(prompt.offsets) if match.start() <= begin < end <= match.end()]
        found.append((inside[0], inside[-1] + 1))
    return found


def encode(examples: list[Example], tokenizer: Tokenizer) -> list[Row]:
    stop = token_id(tokenizer, STOP)
    texts = [prompt_text(e.prompt) for e in examples]
    prompts = tokenizer.encode_batch(texts)
    completions = tokenizer.encode_batch([e.completion for e in examples])
    rows = []
    for example, text, prompt, completion in zip(examples, texts, prompts, completions, strict=True):
        ids = [*prompt.ids, *completion.ids, stop]
        shown = _shown_spans(prompt, text) if example.dataset == "arc_1d" else []
        rows.append(Row(np.array(ids, np.uint16), (*shown, (len(prompt.ids), len(ids)))))
    return rows


def batches(
    rows: dict[str, list[Row]], weights: Callable[[], dict[str, float]], width: int, height: int, seed: int
) -> Iterator[list[list[Row]]]:
    """Endless batches: `height` lines of up to `width` tokens, each line several examples side by side.

    Every task is drawn by its weight of the moment and walked in shuffled epochs. Lines are filled longest example first and then
    shuffled, so that a batch holds little padding and still mixes the tasks: batches sorted by length hold one task
    each, and the model learned next to nothing from those.
    """
    rng = random.Random(seed)
    queues: dict[str, list[Row]] = {name: [] for name in rows}
    names = list(rows)
    while True:
        pool, now = [], weights()
        for name in rng.choices(names, [now.get(n, 0.0 if n.endswith(HARDER) else 1.0) for n in names], k=2048):
            if not queues[name]:
                queues[name] = rng.sample(rows[name], len(rows[name]))
            pool.append(queues[name].pop())
        lines = fill_lines(pool, width)
        rng.shuffle(lines)
        for begin in range(0, len(lines) - height + 1, height):
            yield lines[begin : begin + height]


def fill_lines(pool: list[Row], width: int) -> list[list[Row]]:
    """First fit, longest first; an example longer than a line stands alone."""
    lines: list[list[Row]] = []
    room: list[int] = []
    for row in sorted(pool, key=lambda r: -len(r.ids)):
        place = next((n for n, left in enumerate(room) if left >= len(row.ids)), None)
        if place is None:
            lines.append([])
            room.append(width)
            place = len(lines) - 1
        lines[place].append(row)
        room[place] -= len(row.ids)
    return lines


def collate(lines: list[list[Row]], pad: int, device: torch.device, width: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """ids and targets (batch, time), the latter -100 where no loss is taken; mask (batch, 1, time, time).

    An example sees only itself. Positions run on along the line: rotary attention only knows differences. width: pad to
    at least this many tokens, so that compiled code meets one shape.
    """
    longest = max(width, *(sum(len(row.ids) for row in line) for line in lines))
    ids = torch.full((len(lines), longest), pad)
    targets = torch.full((len(lines), longest), -100)
    owner = torch.zeros(len(lines), longest, dtype=torch.long)
    for number, line in enumerate(lines):
        at = 0
        for place, row in enumerate(line, 1):
            tokens = torch.from_numpy(row.ids.astype(np.int64))
            ids[number, at : at + len(tokens)] = tokens
            owner[number, at : at + len(tokens)] = place
            for begin, end in row.spans:
                targets[number, at + begin - 1 : at + end - 1] = tokens[begin:end]
            at += len(tokens)
    same = owner[:, None, :, None] == owner[:, None, None, :]
    return ids.to(device), targets.to(device), (same & torch.ones(longest, longest, dtype=torch.bool).tril()).to(device)


def loss_of(model: Qwen2, read: Callable[..., Tensor], ids: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Mean cross-entropy over the wanted tokens; logits of those tokens only. read: the model's forward."""
    hidden = read(ids, mask=mask)
    wanted = targets != -100
    return F.cross_entropy(model.logits(hidden[wanted]).float(), targets[wanted])


def schedule(progress: float, plan: Plan) -> float:
    """Warm-up, plateau, then a cosine to a twentieth: a factor on the learning rate."""
    if progress < plan.warm_up:
        return max(progress / plan.warm_up, 0.01)
    if progress < 1 - plan.decay:
        return 1.0
    part = min(1.0, (progress - 1 + plan.decay) / plan.decay)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * part))


def optimizers(model: Qwen2, plan: Plan) -> list[torch.optim.Optimizer]:
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or "embed" in n]
    return [
        torch.optim.Muon(matrices, lr=plan.muon_lr, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(others, lr=plan.adam_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def _checkpoint(folder: Path, model: Qwen2, opts: list[torch.optim.Optimizer], state: dict[str, float]) -> None:
    """Weights and momenta as safetensors (no pickle), the clock as JSON; written aside, then moved."""
    tensors = {f"model.{k}": v.contiguous().clone() for k, v in model.state_dict().items()}
    for number, opt in enumerate(opts):
        for index, parameter in enumerate(p for g in opt.param_groups for p in g["params"]):
            for key, value in opt.state.get(parameter, {}).items():
                tensors[f"opt{number}.{index}.{key}"] = torch.as_tensor(value).contiguous().clone()
    part = folder / "checkpoint.part"
    save_file(tensors, part, metadata={"state": json.dumps(state)})
    part.replace(folder / "checkpoint.safetensors")
    (folder / "checkpoint.json").write_text(json.dumps(state))


def _resume(folder: Path, model: Qwen2, opts: list[torch.optim.Optimizer]) -> dict[str, float]:
    path = folder / "checkpoint.safetensors"
    if not path.exists():
        return {"step": 0, "seconds": 0.0, "tokens": 0}
    tensors = load_file(path)
    model.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
    for number, opt in enumerate(opts):
        for index, parameter in enumerate(p for g in opt.param_groups for p in g["params"]):
            prefix = f"opt{number}.{index}."
            found = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            if found:
                opt.state[parameter] = found
    state: dict[str, float] = json.loads((folder / "checkpoint.json").read_text())
    return state


def run(
    model: Qwen2,
    rows: dict[str, list[Row]],
    stages: Stages,
    polish: Stages,
    tokenizer: Tokenizer,
    plan: Plan,
    folder: Path,
    say: Callable[[str], None],
    clock: Callable[[], float] | None = None,
) -> dict[str, float]:
    """Train until the minutes of the plan and of its polish are used; resumes from the folder's checkpoint.

    clock: seconds, see Plan.minutes. Gives steps, seconds, tokens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(plan.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device).train()
    read: Callable[..., Tensor] = torch.compile(model.forward, dynamic=False) if plan.compiled else model
    opts = optimizers(model, plan)
    base = [[g["lr"] for g in o.param_groups] for o in opts]
    state = _resume(folder, model, opts)
    (folder / "plan.json").write_text(json.dumps(asdict(plan), indent=1))
    pad = token_id(tokenizer, END)
    if clock is None:
        clock = time.process_time if device.type == "cpu" and plan.threads == 1 else time.monotonic
    begun = saved = clock()
    earlier, shown = state["seconds"], []

    def weights() -> dict[str, float]:
        polishing, progress = plan.at(state["seconds"])
        return weights_at(polish if polishing else stages, progress)

    for pack in batches(rows, weights, plan.width, plan.height, plan.seed + int(state["step"])):
        polishing, progress = plan.at(state["seconds"])
        if progress >= 1:
            break
        if polishing and not state.get("polishing"):
            opts = optimizers(model, plan)
        for opt, rates in zip(opts, base, strict=True):
            for group, rate in zip(opt.param_groups, rates, strict=True):
                group["lr"] = rate * schedule(progress, plan) * (plan.polish_rate if polishing else 1.0)
        ids, targets, mask = collate(pack, pad, device, plan.width)
        with torch.autocast(device.type, torch.bfloat16, enabled=plan.half):
            loss = loss_of(model, read, ids, targets, mask)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad(set_to_none=True)
        shown.append(loss.item())
        if not math.isfinite(shown[-1]):
            raise ArithmeticError("The loss is no number any more. Go on from the last checkpoint without --compiled.")
        state = {
            "step": state["step"] + 1,
            "seconds": earlier + clock() - begun,
            "tokens": state["tokens"] + sum(len(row.ids) for line in pack for row in line),
            "polishing": polishing,
        }
        if state["step"] % 50 == 0:
            rate = state["tokens"] / state["seconds"]
            say(f"step {state['step']:.0f} {state['seconds']:.0f}s loss {sum(shown) / len(shown):.4f} {rate:.0f} tok/s")
            shown = []
        if clock() - saved > plan.checkpoint_minutes * 60:
            _checkpoint(folder, model, opts, state)
            saved = clock()
    _checkpoint(folder, model, opts, state)
    return state
