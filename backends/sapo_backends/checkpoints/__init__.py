"""Model files: finding a Hugging Face folder, reading its config, tokenizer and weights, writing what others load."""
