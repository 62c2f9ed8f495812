"""Engines: prompts to tokens, batches to updates. Knows nothing of tasks, rewards or swarms."""
