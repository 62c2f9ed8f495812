"""The wizard: from a file of the person's to a task that a model is trained on."""
