"""Kernels in C: a small float32 model's decoding and updates, and any model's log-probabilities over its vocabulary."""
