"""Conditions: the names that requests of an API can have, and so the conditions of a fault rule that they can meet.

The schemas of the API's versions decide it: each gives an example of a request with one row in every array, and
`matching.py` finds the names in it as in a client's request. A Handler calls this when a rule is added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.faults.matching import KEY_TYPES, groups_in, partitions_of, topic_rows, transactional_ids_in
from kproc.broker.request.registry import lookup
from kproc.wire.codec import schema_of

if TYPE_CHECKING:
    from kproc.broker.calls.own_operations import FaultRule
    from kproc.wire.schema import Field, Schema

_ABOUT_NAMES: Final = ("topic", "partition", "group", "transactional_id")
_OF_EVERY_REQUEST: Final = ("client", "user", "versions")


def unmet_condition(rule: FaultRule, api_key: int, name: str) -> str | None:
    """Return an error text if no request of this API can meet all conditions of the rule, else None.

    `name` is the API's name, for the text.
    """
    api = lookup(api_key)
    assert api is not None, "the rule's names of APIs were validated"
    served = range(api.lo, api.hi + 1)
    versions = [each for each in served if rule.versions is None or _is_within(each, rule.versions)]
    if not versions:
        return f"the broker serves {name} in the versions {api.lo}-{api.hi}: choose some of them"
    found = conditions_of(api_key, versions)
    for condition in _ABOUT_NAMES:
        if getattr(rule, condition) is not None and condition not in found:
            possible = ", ".join((*(each for each in _ABOUT_NAMES if each in found), *_OF_EVERY_REQUEST))
            which = name if rule.versions is None else f"{name} {versions[0]}-{versions[-1]}"
            return f"requests of {which} have no {condition}, so the rule can never act: match by {possible}"
    return None


def conditions_of(api_key: int, versions: Iterable[int]) -> set[str]:
    """Return the conditions about names that a request of this API can meet in one of these versions."""
    found: set[str] = set()
    for version in versions:
        schema = schema_of(api_key, version, "request")
        for number in KEY_TYPES:
            found.update(_names_in(_example(schema, number)))
    return found


def _names_in(fields: dict[str, Any]) -> Iterator[str]:
    for row in topic_rows(fields):
        yield "topic"
        if any(partition >= 0 for partition in partitions_of(row)):
            yield "partition"
    if any(groups_in(fields)):
        yield "group"
    if any(transactional_ids_in(fields)):
        yield "transactional_id"


def _example(schema: Schema, number: int) -> dict[str, Any]:
    """Return a request of this schema with one row in every array, and with `number` in every numeric field."""
    return {field.name: _example_value(field, number) for field in schema.fields}


def _example_value(field: Field, number: int) -> Any:
    if field.struct is not None:
        value: Any = _example(field.struct, number)
    elif field.kind == "string":
        value = "name"
    else:
        value = number
    return [value] if field.is_array else value


def _is_within(version: int, versions: tuple[int, int]) -> bool:
    return versions[0] <= version <= versions[1]
