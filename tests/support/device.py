"""The device that the torch engine's contract is tested on: the processor, or by SAPO_TEST_DEVICE a GPU."""

from __future__ import annotations

import os

DEVICE = os.environ.get("SAPO_TEST_DEVICE", "cpu")
ROUNDING = 0.0 if DEVICE == "cpu" else 1e-4
"""Sums on a GPU come in no fixed order; on a processor the same work gives the same bits."""
