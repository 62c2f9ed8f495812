"""Screen 3: all groups of the run, filtered and paged, and the chosen one in full."""
