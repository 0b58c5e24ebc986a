"""One agreed order of cluster messages: elections, proposals, acknowledgements, catch-up, repair, reconfiguration."""
