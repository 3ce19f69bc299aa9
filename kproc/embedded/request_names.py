"""Names in requests: the topics, groups and transactional ids that a decoded request has, or that an API can have.

The broker records only the first names of each request. With this module RequestRecorder finds the other names in the
decoded request, and rejects conditions that no request can meet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.wire.schema import Schema

# By condition of RequestMatch: the fields with such names, at any depth.
_FIELDS: Final = {
    "topic": ("topics", "topic_data", "topic_partitions", "topic_names", "v3_and_below_topics"),
    "group": ("group_id", "group_ids", "groups", "groups_names"),
    "transactional_id": ("transactional_id", "transactional_ids", "v3_and_below_transactional_id"),
}
CONDITIONS: Final = tuple(_FIELDS)
"""The conditions of RequestMatch that only requests with such names can meet."""
_TOPIC_NAMES: Final = ("name", "topic", "topic_name")
"""Fields of a topic's row that can have the topic's name. API and version decide which of them it is."""


def names_in(fields: Mapping[str, Any], condition: str) -> Iterator[str]:
    """Yield the names of a decoded request for a condition, such as its groups for "group".

    Topics that the request names by id are missing, and so are the keys of FindCoordinator.
    """
    wanted = _FIELDS[condition]
    for field, value in fields.items():
        for row in value if isinstance(value, list) else (value,):
            if isinstance(row, dict):
                if field in wanted:
                    yield from (row[name] for name in _TOPIC_NAMES if row.get(name))
                yield from names_in(row, condition)
            elif field in wanted and isinstance(row, str):
                yield row


def can_name(api_key: ApiKey, condition: str) -> bool:
    """Return True if a version of the API has requests with names for a condition."""
    from kproc.wire.codec import schema_of
    from kproc.wire.schema_table import supported_versions

    if api_key == ApiKey.FIND_COORDINATOR and condition != "topic":
        return True  # Its key is a group or a transactional id.
    versions = supported_versions(api_key)
    return any(_has_field(schema_of(api_key, each, "request"), _FIELDS[condition]) for each in versions)


def _has_field(schema: Schema, names: tuple[str, ...]) -> bool:
    return any(
        field.name in names or (field.struct is not None and _has_field(field.struct, names))
        for field in schema.fields
    )
