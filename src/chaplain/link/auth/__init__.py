"""Authentication: identities, cluster keys, connect tokens and signed greetings."""
