"""This machine: what works, how fast, how much fits, which engine."""
