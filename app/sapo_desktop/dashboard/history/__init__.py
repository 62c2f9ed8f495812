"""What the dashboard remembers of a run. Memory is bounded however long the run is, and the first round is never lost."""
