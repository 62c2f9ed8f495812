"""What the dashboard has done with tasks of the person's own: the wizard from a file to training, and rated answers."""
