"""What holds for every test."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# A test must not fail because the machine was busy, and CI must not fail by chance: there every run draws the same.
CI = os.environ.get("CI") == "true"
settings.register_profile(
    "sapo",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=CI,
    database=None,
)
settings.load_profile("sapo")

# What the dashboard draws depends on the terminal and the language; the tests' own are the same everywhere.
os.environ["TERM"] = "xterm-256color"
os.environ["LANG"] = os.environ["LC_ALL"] = "C.UTF-8"
