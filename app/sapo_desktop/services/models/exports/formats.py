"""The export formats, what is exported, and what is requested."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.services.models.exports.card import ModelCardRecord
from sapo_swarm.config import RunConfig

Format = Literal["hf", "adapter", "gguf", "mlx"]
Quant = Literal["f16", "q8_0", "q4_0", "same"]
ADAPTER = "adapter.gguf"
"""File name of an adapter for a base that is a GGUF file."""
QUANTS: tuple[Quant, ...] = get_args(Quant)
"""same: the types of the GGUF file that the model was made from."""


@dataclass(frozen=True, slots=True)
class FormatInfo:
    """what: one line for people. library: the import name of the library that reads it. lossless: its numbers are exactly the
    trained ones."""

    what: str
    library: str
    lossless: bool


FORMATS: dict[Format, FormatInfo] = {
    "hf": FormatInfo("a Hugging Face folder with merged weights, for transformers and vLLM", "transformers", True),
    "adapter": FormatInfo("the LoRA adapter alone, for peft; needs the base model beside it", "peft", True),
    "gguf": FormatInfo("one GGUF file for llama.cpp, LM Studio and Ollama (with a Modelfile)", "llama_cpp", False),
    "mlx": FormatInfo("a folder for mlx_lm on Apple silicon", "mlx_lm", True),
}
"""format -> its description, for people and for the checks, in the order in which they are offered."""

PACKAGES = {"transformers": "transformers", "peft": "peft", "llama_cpp": "llama-cpp-python", "mlx_lm": "mlx-lm"}
"""import name -> the package to install."""


class ExportFailed(AppError):
    """The export failed; nothing is left behind. The message says why and what to do."""


@dataclass(frozen=True)
class ExportSource:
    """What is exported.

    config: as the run stores it ("auto" is resolved). checkpoint: the folder with state.json and engine/, None for the base
    model. record: the contents of the model card.
    """

    config: RunConfig
    checkpoint: Path | None
    record: ModelCardRecord


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """One export. quant: for GGUF only. verify: load the result with the library it is for. Raises UsageError."""

    format: Format
    target: Path
    quant: Quant = "f16"
    verify: bool = True

    def __post_init__(self) -> None:
        """Refuse contradictory options."""
        if self.format not in FORMATS:
            raise UsageError(f"There is no format {self.format!r}. Use {', '.join(FORMATS)}.")
        if self.quant not in QUANTS:
            raise UsageError(f"There is no quantisation {self.quant!r}. Use {', '.join(QUANTS)}.")
        if self.format != "gguf" and self.quant != "f16":
            raise UsageError(f"--quant is for gguf: {self.format} keeps the weights as they were trained.")

    @property
    def label(self) -> str:
        """The format with its quantisation, as part of a name."""
        return f"{self.format}-{self.quant}" if self.format == "gguf" else self.format
