"""One running trainer."""
