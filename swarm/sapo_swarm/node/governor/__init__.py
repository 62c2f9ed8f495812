"""Whether the node works now: limits, schedule, sensors, and the person's requests."""
