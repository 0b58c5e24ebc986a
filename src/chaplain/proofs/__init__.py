"""Proofs of single messages and of whole logs: Merkle trees, signed checkpoints, policies and proof files.

`merkle` and `tiles` are the tree of RFC 6962 and its files, `groups` the tree inside one pack, `leaf` the entries of
the log's tree. `note`, `cosignature` and `checkpoint` are the signed statements of nodes and witnesses. `policy`
decides which statements are enough. `proof` is the file that combines all of them. No module here depends on nodes,
journals or clients, so that a proof can be checked anywhere. Formats: docs/protocol/proofs.md.
"""
