"""Proofs of single messages and of whole logs: Merkle trees, signed checkpoints, policies and proof files.

`merkle` and `tiles` are the tree of RFC 6962 and its files, `groups` the tree inside one pack, `leaf` the entries of
the log's tree. `note`, `cosignature` and `checkpoint` are the signed statements of nodes and witnesses, `policy` the
rule which of them are enough, and `proof` the file that combines all of it. Nothing here knows nodes, journals or
clients, so that a proof can be checked anywhere. Formats: docs/protocol/proofs.md.
"""
