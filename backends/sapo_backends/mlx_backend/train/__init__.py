"""One policy-gradient update: padded micro-batches, loss, optimizer."""
