"""Tasks that a person made: a folder of text without code (task.toml, train.jsonl, heldout.jsonl)."""
