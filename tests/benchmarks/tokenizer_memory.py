"""What a tokenizer of so many tokens, each made by a merge, holds in memory, and the peak while it is read.

    python tests/benchmarks/tokenizer_memory.py [151643]

Prints one line of JSON, in MB.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from sapo_backends.checkpoints.tokenizer import HfTokenizer

END = "<|end|>"


def write(folder: Path, size: int) -> None:
    """A folder's tokenizer: the bytes, all their pairs, and threes until there are `size`."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = list(itertools.product(letters, letters))
    threes = ((first + second, third) for (first, second), third in itertools.product(pairs, letters))
    merges = list(itertools.islice(itertools.chain(pairs, threes), size - len(letters)))
    vocabulary = {text: i for i, text in enumerate([*letters, *map("".join, merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}), "utf-8")


def held() -> float:
    """MB that this process holds when what is free has gone back to the system."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return float(psutil.Process().memory_info().rss) / 1e6


def main() -> None:
    folder = Path(sys.argv[1])
    before = held()
    tokenizer = HfTokenizer(folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    after = held()
    assert tokenizer.encode_text("a")
    print(json.dumps({"holds": round(after - before, 1), "peak": round(peak - before, 1)}))


if __name__ == "__main__":
    if not (sys.argv[1:] and Path(sys.argv[1]).is_dir()):
        with tempfile.TemporaryDirectory() as made:
            write(Path(made), int(sys.argv[1]) if sys.argv[1:] else 151_643)
            sys.exit(subprocess.run([sys.executable, __file__, made], check=False).returncode)
    main()
