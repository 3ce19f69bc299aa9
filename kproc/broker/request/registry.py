"""The table of APIs that this broker serves: API key, handler function and version range.

Each api file declares its API once with `@api(ApiKey.X, versions=(lo, hi))`. Dispatch and the response to ApiVersions
both read the table, so that the broker cannot advertise an API without code. `kproc.broker.api.load_all()` fills it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from kproc.broker.request.division import SLICE_ROWS, Rows
from kproc.broker.request.rights import Need
from kproc.wire.header import ApiKey

# The arguments are the RequestContext and the decoded request, which is a dict or, for Produce and Fetch, a struct of
# wire/hot.py. The result is the response's fields, or None if the handler function replies later.
HandlerFunction = Callable[[Any, Any], dict[str, Any] | None]
# Maps (request, error code, message) to response fields with the code in every place where this API can report it.
ErrorResponse = Callable[[Any, int, str | None], dict[str, Any]]
# Called with (context, request fields). Validates a request as a whole, once, before it is handled or divided. It
# raises KafkaError for an error of the whole request, and may replace fields. Only if the request is divided, the
# returned iterator runs: it finds errors between rows of different slices, and yields between steps that are as cheap
# as a slice.
Prepare = Callable[[Any, dict[str, Any]], Iterator[None] | None]
# Limit of rows of a request that is handled in one step. So many of the most expensive rows, changes of users, take 10
# ms.
ROWS_MAX: Final = 2_000
# Limit of bytes of a request that is decoded in one step. It can hold 256 of the smallest rows, partition numbers.
DIRECT_BYTES_MAX: Final = 1024
_F = TypeVar("_F", bound=Callable[..., Any])


class Api:
    """One API that the broker serves. The decorator creates it at import, and it never changes."""

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
        self.needs = needs  # The rights that a request needs as a whole.
        self.prepare = prepare
        # The arrays by which a large request can be divided. The first one that the request has is used, because
        # versions differ.
        self.rows = rows
        self.rows_max = rows_max  # Limit of the rows of a request that is not divided.
        # Larger requests are decoded in steps. If an API's rows are expensive, so that its slices are small, all its
        # requests are decoded in steps.
        self.direct_bytes_max = DIRECT_BYTES_MAX if all(each.size >= SLICE_ROWS for each in rows) else 0

    def restricted(self, advertised_lo: int, hi: int) -> Api:
        """Return this API with versions of at most `hi`, advertised from `advertised_lo` on."""
        return Api(
            self.key,
            self.handler,
            self.lo,
            hi,
            advertised_lo,
            self.needs,
            self.prepare,
            self.rows,
            self.rows_max,
        )

    def rows_in(self, request: Mapping[str, Any]) -> Rows | None:
        """Return the rows by which to divide a request of this API, or None if it is handled as a whole."""
        return next((each for each in self.rows if request.get(each.request[0])), None)

    def serves(self, version: int) -> bool:
        """Return True if the broker accepts requests of `version`."""
        return self.lo <= version <= self.hi

    @property
    def error_response(self) -> ErrorResponse | None:
        """The function `error_response` of the API's module, or None if the API's function never raises KafkaError."""
        # Look the function up late, because it usually stands below the handler function in its module.
        module = sys.modules[self.handler.__module__]
        found: ErrorResponse | None = getattr(module, "error_response", None)
        return found

    @property
    def differences(self) -> str | None:
        """The differences from Apache Kafka, from the docstring of the API's module. None if it names none."""
        words = " ".join((sys.modules[self.handler.__module__].__doc__ or "").split())
        _, found, rest = words.partition("Differs from Kafka: ")
        return rest.partition(" Versions:")[0] if found else None

    def __repr__(self) -> str:
        return f"Api({self.key.name}, {self.lo}-{self.hi})"


APIS: Final[dict[int, Api]] = {}
PRODUCE_VERSIONS: Final = set(range(3, 14))
"""Versions of Produce that are served. The Handler checks them without a lookup in APIS, because that is faster."""


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
    """Register the decorated function for `key` in `versions` (both ends included).

    needs: the rights that a client needs. prepare: validation of the whole request. Both run once, not for each slice.
    rows: a request with many rows is divided by the first of `rows` that it has (division.py).
    rows_max: without `rows` a request is handled in one step, and its arrays may have at most this many rows.
    advertised_from: a lower minimum version for ApiVersions. Only Produce needs it, because librdkafka disables
    compression for a broker that does not advertise version 0 (KAFKA-18659).
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
    """Return the API with that number, or None if the broker does not serve it."""
    return APIS.get(key)


def restrict(versions: Mapping[int, tuple[int, int]]) -> None:
    """Serve only the APIs in `versions`, up to their highest version. Advertise these (lowest, highest) versions."""
    for key in list(APIS):
        if key not in versions:
            del APIS[key]
        else:
            APIS[key] = APIS[key].restricted(*versions[key])
    PRODUCE_VERSIONS.intersection_update(range(versions[ApiKey.PRODUCE][1] + 1))


def advertised() -> list[tuple[int, int, int]]:
    """Return (key, lowest, highest version) of every API, by key, for the response to ApiVersions."""
    return [(int(key), entry.advertised_lo, entry.hi) for key, entry in sorted(APIS.items())]
