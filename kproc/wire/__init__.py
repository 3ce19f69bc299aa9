"""Bytes to meaning and back: Kafka's wire protocol without I/O, clock or state.

`codec` encodes and decodes every API as plain dicts, `hot` does Produce and Fetch by hand without copying,
`record_batch` knows what a batch of records looks like. Import from the modules; nothing is re-exported here,
so that a role which needs headers does not pay for the codec.
"""
