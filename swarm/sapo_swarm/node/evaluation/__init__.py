"""Held-out evaluation of the running model, and the guard that acts on it."""
