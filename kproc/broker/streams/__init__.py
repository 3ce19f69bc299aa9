"""Kafka's streams group protocol (KIP-1071): the coordinator assigns tasks to the members of an application.

`records.py` has the bytes of the records of a group, and `state.py` the state that they are replayed to.
`streams_groups.py` has the groups of one coordinator, and `group.py` the rules of one group: `admission.py` validates a
heartbeat, `statuses.py` and `endpoints.py` create parts of the response, and `description.py` describes the group for
tools.

`tasks.py` and `topology.py` have the data of tasks and topologies. `configured_topology.py`, `assignor.py`, `target.py`
and `reconciliation.py` are pure functions. They compute the tasks, the target assignment of each member, and the steps
by which a member reaches its target. `group_records.py` has the records that these changes write.
"""
