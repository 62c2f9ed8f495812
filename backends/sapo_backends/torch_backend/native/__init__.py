"""Small float32 models on a processor, with kernels in C between the matrix products: decoding and updates."""
