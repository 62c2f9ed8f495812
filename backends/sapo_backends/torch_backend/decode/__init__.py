"""Decoding: prefill, KV cache, one step of all rows, with plain, scripted, captured or compiled kernels."""
