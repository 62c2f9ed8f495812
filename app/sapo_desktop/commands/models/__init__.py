"""Verbs about models, runs and tasks."""
