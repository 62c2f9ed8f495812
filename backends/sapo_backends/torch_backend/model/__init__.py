"""The model as named tensors: one flat parameter, LoRA adapters, the decoder that runs over them."""
