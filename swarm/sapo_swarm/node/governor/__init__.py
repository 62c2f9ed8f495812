"""Whether the node works now: limits, schedule, sensors, what the person asked for."""
