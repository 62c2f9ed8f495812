"""The dashboard in lines, for screen readers: the same state as sentences; news is appended and nothing is repainted."""
