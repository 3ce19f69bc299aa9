"""Share partitions: one partition of a topic in one share group, at the Handler that owns the partition's log."""
