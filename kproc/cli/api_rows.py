"""The rows of `kproc api`: each API of Apache Kafka, with its versions here, or the reason why kproc does not serve it.

api_ledger.py imports this module only when the command runs, because most commands start without the wire format.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from kproc.broker.api import load_all
from kproc.broker.request.registry import APIS
from kproc.cli.human import camel_case
from kproc.wire.header import ApiKey


class ApiStatus(StrEnum):
    """The status of an API: kproc serves it, or one broker alone does not need it."""

    SERVED = "served"
    MOOT = "moot"


# (reason, APIs): APIs that Apache Kafka 4.4 advertises to clients and that kproc does not serve, grouped by the reason.
_REASONS: Final = (
    (
        ApiStatus.MOOT,
        "the one controller is the only voter, so that none can be added or removed",
        (ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER, ApiKey.UNREGISTER_CONTROLLER),
    ),
)
_UNSERVED: Final = {key: (status, reason) for status, reason, keys in _REASONS for key in keys}
_BETWEEN_BROKERS: Final = ApiStatus.MOOT, "only Kafka's brokers and controllers send it, to each other"


def api_rows(*, missing: bool) -> list[dict[str, Any]]:
    """Return a row for each API that Kafka advertises to clients.

    With `missing`, add the APIs that only brokers use among themselves.
    """
    load_all()
    rows = []
    for key in sorted(ApiKey):
        entry = APIS.get(key)
        if entry is None and key not in _UNSERVED and not missing:
            continue
        unserved = _UNSERVED.get(key, _BETWEEN_BROKERS)
        status, reason = unserved if entry is None else (ApiStatus.SERVED, None)
        rows.append(
            {
                "key": int(key),
                "api": camel_case(key.name),
                "versions": f"{entry.advertised_lo}-{entry.hi}" if entry is not None else None,
                "status": str(status),
                "reason": reason,
                "differences": entry.differences if entry is not None else None,
            }
        )
    return rows
