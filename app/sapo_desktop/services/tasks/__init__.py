"""Tasks of the person's own: made from a file, looked over before a model is trained on them."""
