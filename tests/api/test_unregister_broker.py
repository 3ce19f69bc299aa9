"""UnregisterBroker: there is no other broker."""

from __future__ import annotations

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.raw import RawClient


def test_unregister_broker_is_rejected(client: RawClient) -> None:
    answer = client.call(ApiKey.UNREGISTER_BROKER, 0, {"broker_id": 12_321})
    assert (answer["error_code"], answer["error_message"]) == (
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        "Broker ID 12321 is not currently registered",
    )
