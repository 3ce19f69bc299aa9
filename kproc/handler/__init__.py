"""The Handler: partitions, groups, requests of known shapes, and how partitions change their owner."""
