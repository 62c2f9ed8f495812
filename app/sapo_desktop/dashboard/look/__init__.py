"""Glyphs, colours and how numbers and foreign text are shown."""
