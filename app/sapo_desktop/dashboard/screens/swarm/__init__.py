"""Screen 2 and its dialogs."""
