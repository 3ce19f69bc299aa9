"""Kafka's streams group protocol (KIP-1071): the coordinator assigns tasks to the members of an application.

`records.py` has the bytes of the records of a group. `topology.py`, `assignor.py` and `reconciliation.py` are pure
functions: which tasks there are, which member shall get which task, and when.
"""
