"""Joining, hosting and leaving a swarm."""
