"""The Processor: own client connections, read requests, write responses."""
