"""The Handler: partitions, groups, the fast path of requests, and how partitions change their owner."""
