"""Conversion of the metadata log's records for output: without passwords, keys and hashes of passwords."""

from __future__ import annotations

import msgspec

from kproc.broker.cluster import records as r
from kproc.broker.config.settings import is_secret
from kproc.broker.config.values import HIDDEN


def without_secrets(data: bytes) -> bytes:
    """Return a record's bytes with its secrets replaced. Bytes that are not a record are returned unchanged."""
    try:
        record = r.decode_record(data)
    except (msgspec.MsgspecError, ValueError):
        return data
    hidden = HIDDEN.encode()
    match record:
        case r.BrokerConfigSet(value=str(), name=name) if is_secret(name, if_unknown=True):
            return r.encode_record(msgspec.structs.replace(record, value=HIDDEN))
        case r.ScramSecretMade():
            return r.encode_record(msgspec.structs.replace(record, secret=hidden))
        case r.ScramCredentialSet():
            keys = dict.fromkeys(("salt", "stored_key", "server_key"), hidden)
            return r.encode_record(msgspec.structs.replace(record, **keys))
    return data
