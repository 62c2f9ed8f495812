"""Which questions exist and how a reference becomes a question."""
