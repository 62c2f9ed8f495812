"""The Textual dashboard: a client of the node that draws what its events say. Imports no engine."""
