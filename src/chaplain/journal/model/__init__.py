"""Values that the parts of the journal share: log positions, results of execution, cluster configuration, quorums."""
