"""Kafka's wire protocol: encoding and decoding without I/O, clock or state.

- `codec` encodes and decodes every API as plain dicts.
- `hot` encodes and decodes Produce and Fetch by hand, without copying records.
- `record_batch` checks, stamps and makes batches of records.

Import from the modules. This package re-exports nothing, so that a role that needs only headers does not load the
codec.
"""
