"""What the dashboard remembers of a run, however long: bounded, and the first round is never lost."""
