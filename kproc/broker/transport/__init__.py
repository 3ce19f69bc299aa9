"""How roles run, and how messages travel between them: as processes, as threads, or all in one thread."""
