"""One arm with one seed: nodes, rounds, checkpoints, held-out evaluation."""
