"""Environments of a person's own: the class with its tools, the tool call in a turn of the model, and the answer to it."""
