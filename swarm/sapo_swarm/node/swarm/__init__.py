"""The node's side of a swarm: exchange, pool, statistics."""
