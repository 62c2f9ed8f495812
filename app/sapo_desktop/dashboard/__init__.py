"""The Textual dashboard: a client of the node that displays its events. Imports no engine."""
