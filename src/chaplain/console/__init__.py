"""A read-only web page that shows a cluster live."""
