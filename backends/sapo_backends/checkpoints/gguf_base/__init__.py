"""A GGUF file as the base of a model: its header, its tokenizer, its weights, and the small folder that stands for it."""
