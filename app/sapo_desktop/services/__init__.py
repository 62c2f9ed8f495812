"""What the verbs and the dashboard have in common: models, nodes, swarms and this machine. No terminal, no widgets."""
