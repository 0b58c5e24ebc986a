"""Spark rows become journal messages, each batch once."""
