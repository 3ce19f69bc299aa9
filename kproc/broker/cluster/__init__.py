"""Cluster metadata: topics, the owners of partitions, configs, features, quotas, ACLs, users and delegation tokens.

One process, the controller, is the single writer (`controller.py`, which does no I/O). `metadata_log.py` keeps its
records on disk. The controller, the cleaner and every Handler hold a `ClusterImage`, built from the same numbered
deltas, so that all of them agree at every version. The modules use no sockets and no rings. Kafka's requests reach them
as plain dicts of the requests' fields.
"""
