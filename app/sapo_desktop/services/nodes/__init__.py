"""Starting a node, attaching to one, its log and its output."""
