"""Engines by name: one whose library is missing says so and hinders no other."""

from __future__ import annotations

import subprocess
import sys


def test_a_missing_package_is_named_with_its_remedy() -> None:
    """Without its library an engine says what to install, and the others go on working."""
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from sapo_backends import registry\n"
        "from sapo_backends.base import BackendUnavailable\n"
        "assert 'fake' in registry.installed() and 'torch' not in registry.installed()\n"
        "registry.backend('fake').check()\n"
        "try: registry.backend('torch')\n"
        "except BackendUnavailable as error: print(error.fix_command)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "sapo-desktop[torch]" in done.stdout
