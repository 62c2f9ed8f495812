"""Stages: what a node generates in a round beyond its own questions, from what others wrote. Pure; found by name."""
