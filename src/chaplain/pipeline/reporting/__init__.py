"""One HTML page with plots of what a log contains."""
