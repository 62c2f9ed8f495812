"""What the engine asks of torch and of the C library: TorchScript, the allocator, worker threads."""
