"""Install llama.cpp for the tests of its engine: python packaging/llama_engine.py

It is compiled on the first machine that has no wheel of it (some minutes, needs a C++ compiler); pip keeps what it built.
Without a compiler the tests are left out; with CI=true that is a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    probe = [sys.executable, "-c", "import llama_cpp, gguf"]
    if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
        return
    print("Installing llama.cpp for its engine's tests: some minutes where pip has to compile it.", flush=True)
    command = [sys.executable, "-m", "pip", "install", "-q", "-e", f"{ROOT}[llama]"]
    if subprocess.run(command, check=False).returncode == 0:
        return
    text = "llama.cpp was not installed (what pip says is above; it needs a C++ compiler and cmake)."
    if os.environ.get("CI") == "true":
        sys.exit(f"{text} Under CI=true every engine must be there.")
    print(f"{text} Its tests are left out.")


if __name__ == "__main__":
    main()
