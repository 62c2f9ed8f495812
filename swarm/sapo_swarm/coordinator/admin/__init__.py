"""What only the host may do: invites, bans, moving the swarm."""
