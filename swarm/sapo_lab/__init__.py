"""Experiments with many nodes on one machine."""
