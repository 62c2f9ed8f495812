"""Verbs about this machine and its settings."""
