"""Numbers that every role counts, kept in shared memory so that one reader sees all processes."""
