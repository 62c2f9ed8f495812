"""What the dashboard has done with models: screen 4 and F2."""
