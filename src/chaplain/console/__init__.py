"""A web page that shows a cluster live. It only looks."""
