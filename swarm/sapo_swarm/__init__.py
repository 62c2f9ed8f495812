"""SAPO: tasks, scoring, rounds, node and coordinator."""
