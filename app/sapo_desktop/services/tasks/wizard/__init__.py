"""The dashboard's operations on custom tasks: the wizard from a file to training, and rated answers."""
