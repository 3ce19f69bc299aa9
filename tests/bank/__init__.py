"""A bank: producers of four makes move amounts between accounts in transactions while roles die.

`python -m tests.bank --rounds 300 --seed 1`. A transfer is two records in two partitions. Whoever reads committed
records must see both or none of them, and never one twice. Copiers read the transfers, write each to another topic and
commit its offset in the same transaction: there each transfer is exactly once, too.
"""
