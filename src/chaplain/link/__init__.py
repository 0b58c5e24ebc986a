"""Authenticated connections: connect tokens, greetings, sealed frames, key ring. The layers above use sessions."""
