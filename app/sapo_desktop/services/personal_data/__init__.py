"""What the app keeps for a person on this machine: removed, saved in one archive, brought back."""
