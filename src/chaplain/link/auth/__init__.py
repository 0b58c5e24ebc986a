"""Who is at the other end: identities, cluster keys, connect tokens and signed greetings."""
