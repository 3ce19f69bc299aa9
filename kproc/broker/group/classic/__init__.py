"""Kafka's classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup (Kafka's GroupMetadataManager).

`group.py` has ClassicGroup, the interface for the coordinator. It consists of `state.py` (what all parts share, and the
diagram of states), `members.py`, `join.py`, `sync.py` and `rebalance.py` (the phases, and everything with a deadline).
"""
