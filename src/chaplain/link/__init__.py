"""Authenticated connections: connect tokens, greetings, sealed frames and the key ring. The layers above use
sessions.
"""
