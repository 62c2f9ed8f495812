"""What several engines share: micro-batches, the steps of an update, sampling from NumPy logits, the hardware."""
