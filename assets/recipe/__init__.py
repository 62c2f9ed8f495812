"""How the starter models are made: question text, tokenizer, training, evaluation. Not shipped in the wheel.

One command: `python -m recipe.make --size 1m --minutes 30` (with `assets` and `swarm` on the path).
"""
