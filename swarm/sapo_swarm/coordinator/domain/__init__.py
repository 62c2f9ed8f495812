"""The coordinator's rules without sockets or clocks: judging groups, limits, counters, the pool."""
