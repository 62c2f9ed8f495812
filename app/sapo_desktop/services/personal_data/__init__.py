"""The data that the app keeps for a person on this machine: removing it, backing it up, restoring it."""
