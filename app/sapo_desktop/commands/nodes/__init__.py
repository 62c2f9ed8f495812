"""Verbs that start, watch and control a node."""
