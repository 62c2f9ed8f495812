"""How an export is loaded, as markdown for its model card."""

from __future__ import annotations

import shlex

from sapo_desktop.services.models.exports.card import ModelCardRecord
from sapo_desktop.services.models.exports.formats import ADAPTER, ExportPlan

_TRANSFORMERS = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = AutoModelForCausalLM.from_pretrained("."), AutoTokenizer.from_pretrained(".")
```
"""
_PEFT = """\
```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained("{base}"){where}
model, tokenizer = PeftModel.from_pretrained(base, "."), AutoTokenizer.from_pretrained(".")
```
"""
_GGUF = """\
```sh
ollama create {slug} -f Modelfile && ollama run {slug}
llama-server -m {slug}-{quant}.gguf --jinja{budget}
```
"""
_GGUF_ADAPTER = """\
```sh
ollama create {slug} -f Modelfile && ollama run {slug}
llama-server -m {base} --lora {adapter} --jinja
```
"""
_FOUR_BIT = """
The adapter belongs to the base in 4 bits (NF4, as QLoRA rounds it), on which it was trained; on the base as it is, its
answers differ a little.
"""
_MLX = """\
```sh
mlx_lm.chat --model .
```
"""


def loading_instructions(record: ModelCardRecord, plan: ExportPlan, gguf: str = "") -> str:
    """The commands or lines of code that load it from within its folder. gguf: the file that an adapter is for, if it is
    one."""
    if gguf:
        return _GGUF_ADAPTER.format(slug=record.slug, base=shlex.quote(gguf), adapter=ADAPTER)
    on_hub = "/" in record.base_name
    base = record.base_name if on_hub else f"path/to/{record.base_name}"
    where = "" if on_hub else "  # adapter_config.json says where it lay"
    budget = " --reasoning-budget 0" if record.thinking is False else ""
    peft = f"{_PEFT}{_FOUR_BIT}" if record.four_bit else _PEFT
    texts = {"hf": _TRANSFORMERS, "adapter": peft, "gguf": _GGUF, "mlx": _MLX}
    return texts[plan.format].format(base=base, where=where, slug=record.slug, quant=plan.quant, budget=budget)
