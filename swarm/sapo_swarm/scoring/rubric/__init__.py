"""Answers judged by a language model and a rubric: asking it, reading its verdict, how far it agrees with a person."""
