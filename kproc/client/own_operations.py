"""The bytes of kproc's own operations, such as `status`, as a client sends and reads them: JSON under API key 30000.

    request   int32 length, header of version 1 (int16 30000, int16 0, int32 correlation id, string client id),
              UTF-8 JSON {"op": name, ...arguments}
    response  int32 length, int32 correlation id, UTF-8 JSON
              {"error": null or text, "result": {...}, "is_retriable": true if the error's cause passes}

The broker runs them in kproc/broker/calls/own_operations.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from struct import Struct
from typing import Any, Final, NoReturn

from kproc.client.errors import ClientError, ConnectionLost, OperationUnavailable

STATUS_KEY: Final = 30_000
"""API key of kproc's own operations, far above any key that Kafka may assign. ApiVersions does not list it."""
STATUS_VERSION: Final = 0
# Start of a request's header: API key, version, correlation id, and the length of the client id.
_HEADER: Final = Struct(">hhih")
_INT_MAX: Final = (1 << 63) - 1


class OperationFields(dict[str, Any]):
    """A JSON object in the answer to an own operation of kproc. A missing field raises ClientError instead of KeyError.

    Any process can listen at the port and answer anything, and a broker of another version has other fields.
    """

    def __missing__(self, key: str) -> NoReturn:
        raise ClientError(
            f"the broker's answer has no field {key!r}: it runs another version of kproc or is not a kproc broker"
        )

    def rows(self, key: str) -> list[dict[str, Any]]:
        """Return the list of JSON objects in the field `key`.

        Raises ClientError if the field is missing or anything else.
        """
        rows = self[key]
        if not isinstance(rows, list) or not all(isinstance(row, OperationFields) for row in rows):
            raise ClientError(f"the broker's answer has no rows in {key!r}: it is not a kproc broker")
        return rows


def encode_operation(correlation_id: int, client_id: str, op: str, arguments: Mapping[str, Any]) -> bytes:
    """Encode a request for an own operation, with its length prefix.

    Raises UnicodeEncodeError for a text that is not UTF-8.
    """
    _require_utf8(arguments)
    name = client_id.encode()
    header = _HEADER.pack(STATUS_KEY, STATUS_VERSION, correlation_id, len(name)) + name
    body = json.dumps({"op": op, **arguments}).encode()
    return (len(header) + len(body)).to_bytes(4, "big") + header + body


def _require_utf8(value: object) -> None:
    """Raise UnicodeEncodeError for a text with surrogates, by which Python represents bytes that are not UTF-8.

    json.dumps() accepts surrogates, and the broker would call the whole request malformed.
    """
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, Mapping):
        for each in value.values():
            _require_utf8(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            _require_utf8(each)


def decode_result(body: bytes, address: str) -> OperationFields:
    """Decode the body of a response to an own operation, without its correlation id, and return the result.

    Raises ClientError with the broker's error text. Raises OperationUnavailable if the broker calls the error
    retriable, and ConnectionLost if the body is not an answer of a kproc broker.
    """
    try:
        answer = json.loads(
            body, object_hook=OperationFields, parse_int=_parse_int, parse_constant=_reject_constant
        )
        problem, result = answer["error"], answer["result"]
    except (ValueError, ClientError, TypeError, RecursionError) as error:
        raise ConnectionLost(f"{address} is not a kproc broker: its answer cannot be read") from error
    if problem is not None:
        if answer.get("is_retriable"):
            raise OperationUnavailable(f"{address}: {problem}; try again")
        raise ClientError(f"{address}: {problem}")
    if not isinstance(result, OperationFields):
        raise ConnectionLost(f"{address} is not a kproc broker: its answer cannot be read")
    return result


def _parse_int(text: str) -> int:
    # Reject integers above 64 bits. Commands convert numbers to dates, which fail for larger ones, and kproc sends
    # none.
    number = int(text)
    if abs(number) > _INT_MAX:
        raise ValueError(f"a number of {len(text)} digits has more than 64 bits, which kproc never sends")
    return number


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
