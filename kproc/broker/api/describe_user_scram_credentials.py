"""DescribeUserScramCredentials (key 50), version 0 (KIP-554): show the mechanisms and iterations of users."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.request import division
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

_IS_REPEATED: Final = "is_repeated"
# Marks a user that the client has not named. It is skipped if it was deleted before its slice is handled.
_LISTED: Final = "listed"
# Names that are counted or marked in one step, which takes 1 ms.
_STEP_ROWS: Final = 2_000


def _prepare(_context: RequestContext, request: dict[str, Any]) -> Iterator[None]:
    steps = _mark_repeated(request)
    if len(request["users"] or ()) <= division.SLICE_ROWS:
        # Run all steps now, because a request of this size is handled as a whole, and nobody would run further steps.
        list(steps)
    return steps


def _mark_repeated(request: dict[str, Any]) -> Iterator[None]:
    """Keep each name once, and mark the names that the client has named several times."""
    users = request["users"] or ()
    times: Counter[str] = Counter()
    for at in range(0, len(users), _STEP_ROWS):
        times.update(map(itemgetter("name"), users[at : at + _STEP_ROWS]))
        yield
    marked = []
    rows = ({"name": name, _IS_REPEATED: count > 1} for name, count in times.items())
    while part := list(islice(rows, _STEP_ROWS)):
        marked += part
        yield
    if marked:
        request["users"] = marked


@api(
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    needs=(on_cluster(Operation.DESCRIBE),),
    prepare=_prepare,
    rows=(rows_at("users", "results"),),
)
def handle_describe_user_scram_credentials(
    context: RequestContext, request: dict[str, Any]
) -> dict[str, Any] | None:
    users = context.services.image.scram_users
    wanted = request["users"]
    if not wanted:  # All users.
        wanted = [{"name": name, _LISTED: True} for name in users.names()]
        if len(wanted) > division.SLICE_ROWS:
            context.divide(lambda: {"users": wanted})
            return None
    results = []
    for user in wanted:
        name = user["name"]
        code, why, found = ErrorCode.NONE, "", users.of(name)
        if _LISTED in user and not found:
            continue
        # KIP-554: a repeated name gets an error instead of two equal rows, because the response identifies
        # its rows by name.
        if user.get(_IS_REPEATED):
            code, found = ErrorCode.DUPLICATE_RESOURCE, {}
            why = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        elif not found:
            code = ErrorCode.RESOURCE_NOT_FOUND
            why = f"Attempt to describe a user credential that does not exist: {name}"
        infos = [{"mechanism": number, "iterations": each.iterations} for number, each in found.items()]
        results.append(
            {"user": name, "error_code": int(code), "error_message": why, "credential_infos": infos}
        )
    return {"error_code": int(ErrorCode.NONE), "error_message": "", "results": results}


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    error = {"error_code": int(code), "error_message": message}
    # As in Kafka, each requested user has a row, but without a name.
    return {
        **error,
        "results": [{"user": "", **error, "credential_infos": []} for _ in request["users"] or ()],
    }
