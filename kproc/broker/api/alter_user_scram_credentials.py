"""AlterUserScramCredentials (key 51), version 0 (KIP-554).

A client sends the salted password. This Handler derives the keys that logins are checked with, and does not pass the
salted password on.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.peers.controller_call import change_metadata, check_size
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.broker.security.sasl.scram import keys_for_password
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

_OPERATION: Final = "alter_user_scram_credentials"


@api(
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    needs=(on_cluster(Operation.ALTER),),
    prepare=partial(check_size, _OPERATION),
)
def handle_alter_user_scram_credentials(context: RequestContext, request: dict[str, Any]) -> None:
    body = {**request, "upsertions": [keys_for_password(row) for row in request["upsertions"]]}
    change_metadata(context, _OPERATION, body, partial(error_response, request))


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    names = dict.fromkeys(row["name"] for row in [*request["deletions"], *request["upsertions"]])
    rows = [{"user": name, "error_code": int(code), "error_message": message} for name in names]
    return {"results": rows}
