"""Programs the tests need that pip cannot bring. As root on Debian they are installed; elsewhere this says what is missing.

With CI=true a missing program is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NEEDED = {"redis-server": "redis-server", "chromium": "chromium", "cc": "gcc", "minisign": "minisign"}
"""program -> Debian package."""


def main() -> None:
    missing = {program: package for program, package in NEEDED.items() if shutil.which(program) is None}
    if missing and shutil.which("apt-get") and hasattr(os, "geteuid") and os.geteuid() == 0:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "-q", "update"], env=environment, check=False, stdout=subprocess.DEVNULL)
        command = ["apt-get", "-q", "install", "-y", "--no-install-recommends", *missing.values()]
        subprocess.run(command, env=environment, check=False, stdout=subprocess.DEVNULL)
        missing = {program: package for program, package in missing.items() if shutil.which(program) is None}
    if not missing:
        return
    text = f"Not installed: {', '.join(missing)} (Debian packages: {', '.join(missing.values())})."
    if os.environ.get("CI") == "true":
        sys.exit(f"{text} Under CI=true everything must be there.")
    print(f"{text} The tests that need them are left out.")


if __name__ == "__main__":
    main()
