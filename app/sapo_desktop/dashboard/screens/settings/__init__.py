"""F2: every setting and its editor."""
