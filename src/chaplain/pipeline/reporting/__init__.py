"""Writes an HTML page with plots about landed streams."""
