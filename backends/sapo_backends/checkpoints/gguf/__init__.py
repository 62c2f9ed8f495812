"""GGUF, the file format of llama.cpp: models, vocabularies and LoRA adapters."""
