"""Environments of the `verifiers` package, run in their own Python and process, through a model's endpoint on loopback."""
