"""For a machine without a C compiler: python packaging/no_compiler.py FOLDER writes a wheel that takes pycosat's place.

reasoning_gym needs pycosat for one dataset, zebra_puzzles, and pycosat is published as source only. The wheel has a name, a
version and no code: the app runs, and zebra_puzzles says what it lacks. packaging/setup_venv.py does this by itself;
docs/how-to/install.md says how uv and pipx take the wheel. Standard library only.
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

LOCK = Path(__file__).resolve().parent / "requirements.lock"
METADATA = """Metadata-Version: 2.1
Name: pycosat
Version: {version}
Summary: Stands for pycosat where no C compiler is; has no code
"""
WHEEL = """Wheel-Version: 1.0
Generator: packaging/no_compiler.py
Root-Is-Purelib: true
Tag: py3-none-any
"""


def write(folder: Path) -> Path:
    """The wheel in this folder, of the locked version, which its own satisfies."""
    locked = re.search(r"^pycosat==(\S+)", LOCK.read_text("utf-8"), re.MULTILINE)
    assert locked is not None
    version = f"{locked[1]}+none"
    info = f"pycosat-{version}.dist-info"
    files = {f"{info}/METADATA": METADATA.format(version=version), f"{info}/WHEEL": WHEEL}
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"pycosat-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Name a folder for the wheel: python packaging/no_compiler.py FOLDER")
    print(write(Path(sys.argv[1])))
