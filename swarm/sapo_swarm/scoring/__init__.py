"""Questions and verdicts, from a limited child process: see scorer.Scorer."""
