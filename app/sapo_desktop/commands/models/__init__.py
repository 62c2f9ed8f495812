"""Verbs about models and runs."""
