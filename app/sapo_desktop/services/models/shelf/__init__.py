"""What a model is on the disk: its record and name, its history, its making and keeping."""
