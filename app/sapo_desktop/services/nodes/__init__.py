"""Starting a node, attaching to one, its log and what it prints."""
