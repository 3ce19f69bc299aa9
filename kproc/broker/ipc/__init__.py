"""Shared memory, wake-ups and descriptors between processes: bytes only, nothing of Kafka.

layout.py has the pictures, region.py makes and hands over memory, ring.py is the one queue that all messages travel
through. Every shared word has exactly one writer. No operation on shared memory waits for another process.
"""
