"""Kafka's streams group protocol (KIP-1071): the coordinator assigns tasks to the members of an application.

`records.py` has the bytes of the records of a group, and `state.py` the state that they are replayed to.
`streams_groups.py` has the groups of one coordinator, and `group.py` the rules of one group: `admission.py` checks a
heartbeat, `commits.py` a commit, and `endpoints.py` tells members where tasks are.

`tasks.py`, `topology.py`, `assignor.py` and `reconciliation.py` are pure functions: which tasks there are, which member
shall get which task, and when.
"""
