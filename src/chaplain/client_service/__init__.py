"""The client service of a node: the requests that clients send, and the answers."""
