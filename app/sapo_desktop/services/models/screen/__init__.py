"""The dashboard's operations on models: screen 4 and F2."""
