"""How an export is loaded, as markdown for its model card."""

from __future__ import annotations

from sapo_desktop.services.models.exports.card import Record
from sapo_desktop.services.models.exports.formats import Plan

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

base = AutoModelForCausalLM.from_pretrained("{base}")
model, tokenizer = PeftModel.from_pretrained(base, "."), AutoTokenizer.from_pretrained(".")
```
"""
_GGUF = """\
```sh
ollama create {slug} -f Modelfile && ollama run {slug}
llama-server -m {slug}-{quant}.gguf --jinja
```
"""
_MLX = """\
```sh
mlx_lm.chat --model .
```
"""


def usage(record: Record, plan: Plan) -> str:
    """The commands or lines of code that load it from within its folder."""
    texts = {"hf": _TRANSFORMERS, "adapter": _PEFT, "gguf": _GGUF, "mlx": _MLX}
    return texts[plan.format].format(base=record.base_name, slug=record.slug, quant=plan.quant)
