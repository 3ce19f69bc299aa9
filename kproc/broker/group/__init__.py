"""Consumer groups: the state machines. No I/O, no clock of their own, no thread.

`classic_group.py` is Kafka's classic protocol (JoinGroup, SyncGroup). A group of another protocol is another class
beside it; the coordinator chooses, the classes do not know each other.
"""
