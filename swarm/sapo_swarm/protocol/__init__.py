"""What travels between nodes and a coordinator: wire format, identity, invites, the client, what is accepted."""
