"""The table of what this broker serves: API key, handler and version range, declared once in each api file.

`@api(ApiKey.X, versions=(lo, hi))` puts a handler into the table; dispatch and the answer to ApiVersions are
both read from it, so the broker cannot advertise what it has no code for. `kproc.broker.api.load_all()` fills it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from kproc.broker.request.division import SLICE_ROWS, Rows
from kproc.broker.request.rights import Need
from kproc.wire.header import ApiKey

# The first argument is the RequestContext, the second the decoded request: a dict, or for Produce and Fetch
# the structs of wire/hot.py. The answer is the response's fields, or None when the handler replies later.
HandlerFunction = Callable[[Any, Any], dict[str, Any] | None]
# (request, error code, message) -> response fields that carry the code wherever this API has room for it.
ErrorResponse = Callable[[Any, int, str | None], dict[str, Any]]
# (context, request fields): checks a request as a whole, once, before it is handled or divided. Raises KafkaError for
# an error of the whole request, and may replace fields. If the request is divided, the returned iterator is run: it
# looks at all rows for what no slice can see, and yields between steps that are as cheap as a slice.
Prepare = Callable[[Any, dict[str, Any]], Iterator[None] | None]
# Limit of rows of a request that is handled in one step. The most expensive rows, changes of users, then take 10 ms.
ROWS_MAX: Final = 2_000
# Limit of bytes of a request that is decoded in one step. It can hold 256 of the smallest rows, partition numbers.
DIRECT_BYTES_MAX: Final = 1024
_F = TypeVar("_F", bound=Callable[..., Any])


class Api:
    """One served API. Made by the decorator at import, never changed."""

    __slots__ = (
        "advertised_lo",
        "direct_bytes_max",
        "handler",
        "hi",
        "key",
        "lo",
        "needs",
        "prepare",
        "rows",
        "rows_max",
    )

    def __init__(
        self,
        key: ApiKey,
        handler: HandlerFunction,
        lo: int,
        hi: int,
        advertised_lo: int,
        needs: tuple[Need, ...],
        prepare: Prepare | None,
        rows: tuple[Rows, ...],
        rows_max: int,
    ) -> None:
        self.key = key
        self.handler = handler
        self.lo = lo
        self.hi = hi
        self.advertised_lo = advertised_lo
        self.needs = needs  # The rights without which a request is refused as a whole.
        self.prepare = prepare
        # A large request is divided by the first of these that it has. There may be several, because versions differ.
        self.rows = rows
        self.rows_max = rows_max  # Of a request that is not divided.
        # Larger requests are decoded in steps. If few rows are expensive (a small slice), every request is.
        self.direct_bytes_max = DIRECT_BYTES_MAX if all(each.size >= SLICE_ROWS for each in rows) else 0

    def rows_in(self, request: Mapping[str, Any]) -> Rows | None:
        """Return the rows by which to divide a request of this API, or None if it is handled as a whole."""
        return next((each for each in self.rows if request.get(each.request[0])), None)

    def serves(self, version: int) -> bool:
        """Whether a request of `version` reaches the handler."""
        return self.lo <= version <= self.hi

    @property
    def error_response(self) -> ErrorResponse | None:
        """The api file's `error_response`, or None when it never raises KafkaError."""
        # Looked up late: the function usually stands below the handler in its file.
        module = sys.modules[self.handler.__module__]
        found: ErrorResponse | None = getattr(module, "error_response", None)
        return found

    @property
    def differences(self) -> str | None:
        """In which ways Apache Kafka answers otherwise: what the api file's docstring says of it."""
        words = " ".join((sys.modules[self.handler.__module__].__doc__ or "").split())
        _, found, rest = words.partition("Differs from Kafka: ")
        return rest.partition(" Versions:")[0] if found else None

    def __repr__(self) -> str:
        return f"Api({self.key.name}, {self.lo}-{self.hi})"


APIS: Final[dict[int, Api]] = {}


def api(
    key: ApiKey,
    versions: tuple[int, int],
    *,
    advertised_from: int | None = None,
    needs: tuple[Need, ...] = (),
    prepare: Prepare | None = None,
    rows: tuple[Rows, ...] = (),
    rows_max: int = ROWS_MAX,
) -> Callable[[_F], _F]:
    """Serve `key` in `versions` (both ends included) with the decorated function, to who has the rights `needs`.

    A request with many `rows` is divided by the first of `rows` that it has; see division.py. Without `rows` it is
    handled in one step, and may have at most `rows_max` rows in all its arrays. `needs` and `prepare` are checked
    once for the whole request, not for each slice.

    `advertised_from` shows clients a lower minimum than is served. Only Produce needs it: librdkafka takes
    compression away from a broker that does not show version 0 (KAFKA-18659).
    """
    lo, hi = versions
    assert 0 <= lo <= hi, f"{key.name}: versions {lo}-{hi}"
    shown = lo if advertised_from is None else advertised_from
    assert 0 <= shown <= lo, f"{key.name}: advertised from {shown}, served from {lo}"

    def register(handler: _F) -> _F:
        assert key not in APIS or APIS[key].handler.__module__ == handler.__module__, f"{key.name} twice"
        APIS[key] = Api(key, handler, lo, hi, shown, needs, prepare, rows, rows_max)
        return handler

    return register


def lookup(key: int) -> Api | None:
    """The API with that number, or None when it is not served."""
    return APIS.get(key)


def advertised() -> list[tuple[int, int, int]]:
    """(key, lowest, highest version) of everything served, by key: the body of an ApiVersions answer."""
    return [(int(key), entry.advertised_lo, entry.hi) for key, entry in sorted(APIS.items())]
