"""Leader election, log replication and recovery of the serializers: the journal's Raft-like consensus."""
