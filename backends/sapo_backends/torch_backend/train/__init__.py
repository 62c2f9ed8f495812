"""One policy-gradient update: loss, optimizer, the order of micro-batches."""
