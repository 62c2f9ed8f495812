"""What the engine needs of torch and of the C library: TorchScript, the allocator, worker threads."""
