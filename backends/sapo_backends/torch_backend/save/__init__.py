"""What is written to disk: checkpoints to resume from, folders that others load."""
