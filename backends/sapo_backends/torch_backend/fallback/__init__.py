"""Architectures that the own decoder does not compute, by transformers."""
