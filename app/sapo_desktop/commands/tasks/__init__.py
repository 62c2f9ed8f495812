"""The verb about tasks: the list, and tasks of the person's own."""
