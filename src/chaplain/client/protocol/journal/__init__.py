"""The client's side of the journal: writing, reading, retrying and resolving."""
