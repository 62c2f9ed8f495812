"""Custom tasks: made from a file, reviewed before a model is trained on them."""
