"""Verbs that join and host swarms."""
