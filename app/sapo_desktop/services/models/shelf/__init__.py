"""What a model is on the disk: its record and name, its history, how it is created and kept."""
