"""Transactions: the states of transactional ids, the rules between them, and the records that store them.

No I/O, no clock, no thread: handler/coordinator_kinds.py creates the coordinators, and
coordinator/coordinator_runtime.py runs them.
"""
