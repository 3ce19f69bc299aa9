"""Divide a request with many rows into smaller requests of the same API, and join their answers.

`Rows` describes where an API's rows are in its requests and responses; the API declares it with `@api(..., rows=...)`.
`divide` yields requests with a bounded number of rows each. The API's handler function answers each of them as if a
client had sent it. `JoinedAnswer` joins the answers into one for the client, with every row in the same place as
without the division. It stores encoded bytes, because they need less memory than rows.

request/divided_request.py handles the smaller requests one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from kproc.wire import codec
from kproc.wire.schema_writer import EncodedRows

Fields = dict[str, Any]
UniqueKey = Callable[[Any], Hashable]
SLICE_ROWS: Final = 200
# Limit of the bytes of a joined response, documented in SECURITY.md.
ANSWER_BYTES_MAX: Final = 16 << 20
# The error message of the remaining rows if the joined answer would exceed ANSWER_BYTES_MAX.
TOO_LARGE: Final = f"Answer above {ANSWER_BYTES_MAX >> 20} MiB, request fewer rows"


class Rows(msgspec.Struct, frozen=True):
    """The arrays of an API whose elements are handled independently of each other.

    `request` and `response` are paths of array fields, outermost first. With "topics.partitions", each partition of
    each topic is a row. `size` is the limit of rows that are handled at once. Rows with an equal `unique` key are
    handled together, however many there are, because the API rejects duplicates. With `are_looked_up_once`, equal rows
    are looked up once and their response is repeated.
    The first `shared` levels of `response` do not exist in the request. Each has one element, and the answers to all
    rows are inside of it. `response` may have more levels than `request` at its end, if the answer to one row contains
    rows itself.
    """

    request: tuple[str, ...]
    response: tuple[str, ...]
    size: int = SLICE_ROWS
    unique: UniqueKey | None = None
    are_looked_up_once: bool = False
    shared: int = 0


def rows_at(
    request: str,
    response: str,
    *,
    size: int = SLICE_ROWS,
    unique: UniqueKey | None = None,
    are_looked_up_once: bool = False,
    shared: int = 0,
) -> Rows:
    """Return `Rows` for arrays at two dotted paths, such as "topics.partitions".

    The other arguments are the fields of Rows.
    """
    paths = tuple(request.split(".")), tuple(response.split("."))
    return Rows(*paths, size, unique, are_looked_up_once, shared)


def count_rows(fields: Mapping[str, Any], path: tuple[str, ...]) -> int:
    """Return the number of rows at `path` plus the number of containers that hold them, as `divide` counts them."""
    found = fields[path[0]] or ()
    if len(path) == 1:
        return len(found)
    return sum(1 + count_rows(row, path[1:]) for row in found)


class Slice(NamedTuple):
    """A slice of a large request. `continued`: the levels of the path at which it continues the slice before it.

    With 1, its first topic or group is the last one of the slice before it. With 0, it begins a new topic or group.
    """

    fields: Fields
    continued: int = 0


def divide(fields: Fields, where: Rows) -> Iterator[Slice]:
    """Divide a request into slices of at most `where.size` rows, in the order of the rows.

    Yields at least one slice, even if the request has no rows. Rows whose unique key occurs more than once come last,
    in one slice together.
    """
    duplicates: list[Fields] = []
    if where.unique is not None:
        fields, duplicates = _without_duplicates(fields, where.request[0], where.unique)
    yield from _Cutter(where.request, where.size).cut(fields)
    if duplicates:
        yield Slice({**fields, where.request[0]: duplicates})


def _without_duplicates(fields: Fields, name: str, unique: UniqueKey) -> tuple[Fields, list[Fields]]:
    """Return (the request without the rows that occur several times, those rows)."""
    found: list[Any] = fields[name]
    keys = list(map(unique, found))
    if len(set(keys)) == len(found):
        return fields, []
    counts = Counter(keys)
    duplicates = [row for row, key in zip(found, keys, strict=True) if counts[key] > 1]
    others = [row for row, key in zip(found, keys, strict=True) if counts[key] == 1]
    return {**fields, name: others}, duplicates


class _Cutter:
    """Copies a request's containers (topics, groups) into slices of at most `size` rows and containers."""

    def __init__(self, path: tuple[str, ...], size: int) -> None:
        self._path = path
        self._size = self._room = size
        self._is_empty = True  # True until the slice has a row or a whole container.
        # The request itself and the containers within it that are being copied, outermost first.
        self._open: list[Fields] = []

    def cut(self, fields: Fields) -> Iterator[Slice]:
        continued = 0
        for depth in self._walk(fields, 0):
            yield Slice(self._open[0], continued)
            continued = depth
            before, self._open = self._open[: depth + 1], []
            for at, container in enumerate(before):
                self._copy(container, at)
            self._room, self._is_empty = self._size, True
        yield Slice(self._open[0], continued)

    def _copy(self, container: Fields, depth: int) -> None:
        """Begin a copy of a container, without its rows."""
        copy = {**container, self._path[depth]: []}
        del self._open[depth:]
        if depth:
            self._open[-1][self._path[depth - 1]].append(copy)
        self._open.append(copy)

    def _walk(self, container: Fields, depth: int) -> Iterator[int]:
        """Copy a container. Whenever the slice is full, yield the depth at which to cut it."""
        self._copy(container, depth)
        name = self._path[depth]
        found: list[Any] | None = container[name]
        if found is None:
            # Null stands for all existing rows, so it fills the slice.
            self._open[depth][name] = None
            self._room, self._is_empty = 0, False
            return
        levels = len(self._path) - depth
        at = 0
        while at < len(found):
            # Open a container only if one of its rows fits into the slice, too. An empty container has another meaning:
            # an OffsetFetch for a group with an empty list of topics returns no offsets.
            if self._room < levels and not self._is_empty:
                yield depth
            if levels == 1:
                taken = found[at : at + max(1, self._room)]
                self._open[depth][name] += taken
                at += len(taken)
                self._room -= len(taken)
            else:
                self._room -= 1
                yield from self._walk(found[at], depth + 1)
                at += 1
            self._is_empty = False


def _keep_error(fields: Fields, later: Mapping[str, Any]) -> None:
    """Copy the error of a later part to `fields`, unless `fields` has an error already."""
    if later.get("error_code") and not fields.get("error_code"):
        fields.update({name: later[name] for name in ("error_code", "error_message") if name in later})


class JoinedAnswer:
    """The answers to the slices of one request, joined in their order.

    `path` is the path of the rows. At the first `shared` levels of `path` the responses to all slices are in the same
    element.
    """

    def __init__(self, api_key: int, version: int, path: tuple[str, ...], *, shared: int = 0) -> None:
        self.path = path
        self._shared = shared
        self._schemas = [codec.response_rows(api_key, version, path[: at + 1]) for at in range(len(path))]
        self._fields: Fields = {}
        self._rows = [EncodedRows() for _ in path]
        # For each level of nesting but the last: the fields of the container whose rows are being collected.
        self._open: list[Fields | None] = [None] * (len(path) - 1)

    def size_bytes(self) -> int:
        """Return the encoded size of the rows that were added."""
        return sum(each.size_bytes() for each in self._rows)

    def repeat(self, count: int, encoded: bytes) -> None:
        """Add rows that `rows_since` returned earlier."""
        self._rows[0].seal()
        self._rows[0].data += encoded
        self._rows[0].count += count

    def rows_since(self, count: int, position: int) -> tuple[int, bytes]:
        """Return (number, bytes) of the rows behind the first `count` rows. The first rows have `position` bytes."""
        return self._rows[0].count - count, self._rows[0].last_bytes(position)

    def count(self) -> int:
        """Return the number of rows that were added. A container counts as one."""
        return self._rows[0].count

    def add(self, fields: Fields, continued: int = 0) -> None:
        """Add the next part of the response. Its first rows continue the last ones at `continued` levels of `path`."""
        name = self.path[0]
        others = {key: value for key, value in fields.items() if key != name}
        if not self._fields:
            self._fields = others
        _keep_error(self._fields, others)
        self._add(fields[name] or (), 0, max(continued, self._shared))

    def fields(self) -> Fields:
        """Return the whole answer. Nothing can be added afterwards."""
        self._close(0)
        return {**self._fields, self.path[0]: self._rows[0]}

    def _add(self, found: Sequence[Any], level: int, continued: int) -> None:
        rows_, schema = self._rows[level], self._schemas[level]
        rows_.seal()
        if level == len(self.path) - 1:
            for row in found:
                schema.write(rows_.data, row)
            rows_.count += len(found)
            return
        name = self.path[level + 1]
        for row in found:
            before = self._open[level]
            is_same = (
                level < continued
                and before is not None
                and all(row.get(field) == before.get(field) for field in schema.identity)
            )
            if not is_same:
                self._close(level)
                self._open[level] = {key: value for key, value in row.items() if key != name}
            elif before is not None:
                # A later slice of the same group can fail because the coordinator's Handler died. With error code 0 the
                # client would take the missing rows for offsets that were never committed.
                _keep_error(before, row)
            self._add(row[name] or (), level + 1, continued if is_same else 0)
            continued = 0

    def _close(self, level: int) -> None:
        """Encode the open container of this level, with the rows that were collected for it."""
        if level >= len(self._open) or (container := self._open[level]) is None:
            return
        self._close(level + 1)
        container[self.path[level + 1]] = self._rows[level + 1]
        self._rows[level + 1] = EncodedRows()
        self._schemas[level].write(self._rows[level].data, container)
        self._rows[level].count += 1
        self._open[level] = None
