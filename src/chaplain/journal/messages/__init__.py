"""Byte layouts of everything that the journal sends, stores and signs."""
