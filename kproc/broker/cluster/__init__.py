"""Cluster metadata: what exists, where it is placed, and who may change it.

One process, the controller, is the single writer (`controller.py`, sans-IO; `metadata_log.py` keeps its
records on disk). Every role holds a `ClusterImage` built from the same numbered deltas, so that all of them
agree at every version. Nothing here knows about sockets or rings, or about Kafka's requests beyond the plain dicts of
their bodies.
"""
