"""Records of the metadata log as people may see them: without passwords, and what passwords can be tried against."""

from __future__ import annotations

import msgspec

from kproc.cluster import records as r
from kproc.config import SETTINGS
from kproc.config.dynamic import split_listener_key
from kproc.config.values import HIDDEN, Kind


def without_secrets(data: bytes) -> bytes:
    """The bytes of a record with its secrets replaced; other bytes stay as they are."""
    try:
        record = r.decode_record(data)
    except (msgspec.MsgspecError, ValueError):
        return data
    hidden = HIDDEN.encode()
    match record:
        case r.BrokerConfigSet(value=str(), name=name) if _is_secret(name):
            return r.encode_record(msgspec.structs.replace(record, value=HIDDEN))
        case r.ScramSecretMade():
            return r.encode_record(msgspec.structs.replace(record, secret=hidden))
        case r.ScramCredentialSet():
            keys = dict.fromkeys(("salt", "stored_key", "server_key"), hidden)
            return r.encode_record(msgspec.structs.replace(record, **keys))
    return data


def _is_secret(name: str) -> bool:
    """By the table; what it does not know is hidden, too."""
    plain = split_listener_key(name)[1]
    row = SETTINGS.get(plain) or SETTINGS.get(plain.partition(".")[2])
    return row is None or row.kind is Kind.PASSWORD
