"""What was trained here: runs, checkpoints, recordings."""
