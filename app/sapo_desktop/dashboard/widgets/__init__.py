"""Custom widgets: the braille chart and the panels of the dashboard."""
