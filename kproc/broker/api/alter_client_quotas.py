"""AlterClientQuotas (key 49), versions 0-1 (KIP-546).

It sets the quotas of users, client ids and addresses, and their defaults. cluster/client_quotas.py has the keys and the
checks.

Versions: v1 flexible.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.peers.controller_call import change_metadata, check_size
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


# An entity has at most three parts: user, client id and address. Reject entries with far more here, because one entry
# is one step of a Handler and of the controller, and 90,000 parts took 255 ms.
_PARTS_MAX: Final = 100


def _prepare(context: RequestContext, request: dict[str, Any]) -> None:
    check_size("alter_client_quotas", context, request)
    most = max((len(entry["entity"]) for entry in request["entries"]), default=0)
    if most > _PARTS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"A quota entity of the request has {most} components (user, client-id or ip); at most {_PARTS_MAX} are "
            "allowed",
        )


def _entity_of(entry: dict[str, Any]) -> frozenset[tuple[str, str | None]]:
    """Return the quota entity of an entry. The order of its types is irrelevant, and the last name of a type counts."""
    return frozenset({row["entity_type"]: row["entity_name"] for row in entry["entity"]}.items())


@api(
    ApiKey.ALTER_CLIENT_QUOTAS,
    versions=(0, 1),
    needs=(on_cluster(Operation.ALTER_CONFIGS),),
    prepare=_prepare,
    rows=(rows_at("entries", "entries", unique=_entity_of),),
)
def handle_alter_client_quotas(context: RequestContext, request: dict[str, Any]) -> None:
    change_metadata(context, "alter_client_quotas", request, partial(error_response, request))


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    rows = [
        # Repeat no more parts than a valid entity has. Otherwise the answer to a rejected request would be as large as
        # the request.
        {"error_code": code, "error_message": message, "entity": entry["entity"][:_PARTS_MAX]}
        for entry in request["entries"]
    ]
    return {"entries": rows}
