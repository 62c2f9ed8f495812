"""Screen 4."""
