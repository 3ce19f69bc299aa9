"""The transports: they run roles as processes, as threads or in one thread, and carry messages between them."""
