"""Swarm sAmpling Policy Optimization (arXiv 2509.08721, algorithm 1): what goes into a training batch. Pure."""
