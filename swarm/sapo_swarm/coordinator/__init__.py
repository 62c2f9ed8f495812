"""The server through which nodes exchange rollout groups."""
