"""The node's local control API: messages, client and server."""
