"""Decoding: prefill, KV cache, a step of all rows (plain, scripted, captured, compiled)."""
