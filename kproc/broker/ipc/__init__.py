"""Shared memory, wake-ups and descriptors between processes: bytes only, nothing of Kafka.

Read layout.py for the pictures, region.py for how memory is made and handed over, ring.py for the one queue
that everything travels through. Every shared word has exactly one writer; nothing here ever blocks or locks.
"""
