"""Held-out results: base and now, the strip of every task over time, levels of difficulty."""
