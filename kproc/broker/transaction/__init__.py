"""Transactions: the states of transactional ids, the rules between them, and the records that store them.

No I/O, no clock, no thread: handler/transactions.py makes its coordinators, handler/coordinator_runtime.py runs them.
"""
