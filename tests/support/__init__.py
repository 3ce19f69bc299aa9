"""Shared parts of the tests: starting brokers, raw frames, counting the descriptors of a process."""
