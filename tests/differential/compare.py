"""Two answers in canonical form: where they differ, and how a difference is called."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from kproc.common.errors import ErrorCode
from tests.differential.symbols import Words
from tests.support.kafka_jars import KAFKA_VERSION

ORDER, ITEMS = "(order)", "(items)"
Path = tuple[Any, ...]
Rows = tuple[dict[str, Any], ...]
# What names a row of a list; rows are compared with those of the same names.
_NAMES = (
    "name", "topic", "topic_name", "topic_id", "group_id", "key", "resource_type", "resource_name", "member_id",
    "group_instance_id", "partition_index", "partition", "partition_id", "index", "entity_type", "producer_id",
    "batch_index", "feature", "user", "mechanism",
    "subtopology_id",
)  # fmt: skip


# Kafka shows these settings of a group only because brokers.py sets them.
_OF_THIS_COMPARISON = {"consumer.assignor.offload.enable", "streams.assignor.offload.enable"}
# The settings of topics and groups that Kafka 4.4 adds to those of 4.3.
_SINCE_4_4 = {
    "errors.deadletterqueue.copy.record.enable", "errors.deadletterqueue.group.enable",
    "errors.deadletterqueue.topic.name", "max.decompressed.message.bytes", "remote.copy.lag.bytes",
    "remote.copy.lag.ms", "streams.assignor.name", "streams.rack.aware.assignment.tags",
}  # fmt: skip


class Difference(NamedTuple):
    """One place in an answer; `rows`: kproc's structs around it, the outermost first."""

    path: Path
    kproc: Any
    kafka: Any
    rows: tuple[dict[str, Any], ...] = ()

    @property
    def field(self) -> str:
        return ".".join(part for part in self.path if isinstance(part, str))


class Texts(NamedTuple):
    """Two messages that are worded differently."""

    kproc: str
    kafka: str


def _row_key(row: Any) -> tuple[list[str], str]:
    if not isinstance(row, dict):
        return [], repr(row)
    if isinstance(row.get("entity"), list):
        return [str(sorted(map(repr, row["entity"])))], repr(row)
    return [str(row[name]) for name in _NAMES if row.get(name) is not None], repr(_settled(row))


def _settled(value: Any) -> Any:
    """The same without an order, which may be that of a hash map, and without words: rows are not paired by them."""
    if isinstance(value, Words):
        return bool(value)
    if isinstance(value, dict):
        return {name: _settled(each) for name, each in value.items()}
    return sorted(map(repr, map(_settled, value))) if isinstance(value, list) else value


def comparable_settings(kproc: Any, kafka: Any) -> tuple[Any, Any]:
    """Return both answers without the settings that only one of them can have.

    A Kafka that is older than 4.4 lacks those that 4.4 has added.
    """
    newer = set() if KAFKA_VERSION >= "4.4" else _SINCE_4_4
    return _without_rows(kproc, newer), _without_rows(kafka, _OF_THIS_COMPARISON)


def _without_rows(answer: Any, names: set[str]) -> Any:
    if isinstance(answer, list):
        rows = [each for each in answer if not (isinstance(each, dict) and each.get("name") in names)]
        return [_without_rows(each, names) for each in rows]
    if isinstance(answer, dict):
        return {name: _without_rows(value, names) for name, value in answer.items()}
    return answer


def compare(kproc: Any, kafka: Any) -> tuple[list[Difference], list[Texts]]:
    """All places in which two answers differ, and the messages that are only worded differently."""
    found: list[Difference] = []
    texts: list[Texts] = []
    _Comparison(found, texts).compare(kproc, kafka, (), ())
    return found, texts


class _Comparison(NamedTuple):
    found: list[Difference]
    texts: list[Texts]

    def compare(self, left: Any, right: Any, path: Path, rows: Rows) -> None:
        if isinstance(left, Words) and isinstance(right, Words) and left and right:
            if left.casefold() != right.casefold():
                self.texts.append(Texts(str(left), str(right)))
        elif isinstance(left, dict) and isinstance(right, dict):
            inner = (*rows, left)
            for key in [*left, *(key for key in right if key not in left)]:
                self.compare(left.get(key, "(absent)"), right.get(key, "(absent)"), (*path, key), inner)
        elif isinstance(left, list) and isinstance(right, list):
            self._lists(left, right, path, rows)
        elif left != right:
            self.found.append(Difference(path, left, right, rows))

    def _lists(self, left: list[Any], right: list[Any], path: Path, rows: Rows) -> None:
        sorted_left, sorted_right = sorted(left, key=_row_key), sorted(right, key=_row_key)
        names_left, names_right = _names(left), _names(right)
        # By all that names them; else by the first of it, because an error may leave the rest out.
        is_paired = _names(sorted_left) == _names(sorted_right) or (
            len(left) == len(right) and _first_names(sorted_left) == _first_names(sorted_right)
        )
        if is_paired and path[-1] != "records":
            if names_left != names_right:
                self.found.append(Difference((*path, ORDER), names_left, names_right, rows))
            left, right = sorted_left, sorted_right
        elif len(left) != len(right):
            more = [name for name in names_left if name not in names_right]
            fewer = [name for name in names_right if name not in names_left]
            how = "has more" if len(left) > len(right) else "has fewer"
            self.found.append(Difference((*path, ITEMS), how, f"{more} | {fewer}", rows))
            return
        for number, (one, other) in enumerate(zip(left, right, strict=True)):
            self.compare(one, other, (*path, number), rows)


def _names(rows: list[Any]) -> list[Any]:
    return [_row_key(row)[0] or row for row in rows]


def _first_names(rows: list[Any]) -> list[str]:
    return [(_row_key(row)[0] or [repr(row)])[0] for row in rows]


def cause_of(api: str, difference: Difference) -> str:
    """What differences of one kind are grouped by: API, field, and the two sides without their particulars."""
    field = difference.field
    last = field.rsplit(".", 1)[-1]
    cause = f"{api} {field}: kproc {_told(last, difference.kproc)}"
    return cause if difference.path[-1:] == (ITEMS,) else f"{cause} | Kafka {_told(last, difference.kafka)}"


def _told(field: str, value: Any) -> str:
    if isinstance(value, Words):
        return "text" if value else "''"
    if field == "error_code" and isinstance(value, int):
        return str(ErrorCode(value).name)
    if isinstance(value, dict):
        return "an answer"
    if isinstance(value, str):
        return re.sub(r"\d+", "N", repr(value))[:50]
    return repr(value) if value in (None, True, False, 0, -1) else "n"
