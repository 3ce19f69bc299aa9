"""Consumer groups: the rules of their coordinator, without I/O, clock or thread.

- coordinator.py: GroupCoordinator, all groups and committed offsets of one partition of `__consumer_offsets`
- classic_groups.py, consumer_groups.py: the groups of one protocol, and requests to them
- offset_requests.py: requests about committed offsets
- classic/: the classic protocol
- consumer/: the consumer protocol (KIP-848), and classic members in its groups
- migration.py: conversion of a group between these two protocols. The groups of all protocols are in one dictionary of
  the coordinator, because a group id has one group.
- offsets.py, pending_offsets.py: committed offsets, for groups of any protocol
- records.py: the bytes of the log's records
- messages.py: requests and responses
"""
