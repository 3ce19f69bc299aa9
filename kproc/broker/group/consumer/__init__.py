"""Kafka's consumer group protocol (KIP-848): the coordinator assigns partitions, and members follow by heartbeats.

`group.py` has ConsumerGroup, the interface for the coordinator. `state.py` has the group's state, which its records
change, and `records.py` the bytes of the records. `assignors.py` and `reconciliation.py` are the pure functions that
decide which member gets which partition, and when. `classic_members.py` and `embedded.py` are for members of the
classic protocol in a group of the consumer protocol.
"""
