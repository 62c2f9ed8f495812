"""The tasks verb: the list, and custom tasks."""
