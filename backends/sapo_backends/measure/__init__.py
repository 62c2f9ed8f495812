"""How fast and how exact an engine is on this machine, and the choice that follows from it."""
