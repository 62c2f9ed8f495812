"""Journal and checkpoints on disk."""
