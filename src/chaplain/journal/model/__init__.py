"""Values that the journal's parts share: positions, results, the cluster's configuration, quorums."""
