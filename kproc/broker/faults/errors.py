"""Error answers: a request, or some of its partitions, fails with the error code of a fault rule.

The work of the failed partitions is not done. If a request names other partitions, too, these are handled as a request
of their own, and its answer is merged with the errors. A Fetch changes no data, so it is handled whole without waiting,
and the rows of the failed partitions are replaced. This keeps the client's fetch session up to date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.faults.answers import Answer, intercept
from kproc.broker.faults.matching import PARTITION_ARRAYS, TOPIC_ARRAYS, partition_number
from kproc.broker.metrics.requests import REQUESTS
from kproc.broker.request.registry import lookup
from kproc.common.errors import ErrorCode
from kproc.wire import codec
from kproc.wire.header import REQUEST_HEADER, ApiKey

if TYPE_CHECKING:
    from kproc.broker.faults.matching import Matcher, RequestNames
    from kproc.broker.request.request import HandlerRequest

Fields = dict[str, Any]
# A function that handles a request with a changed body.
Work = Callable[["HandlerRequest", bytearray], None]
_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)
# Errors of a whole Fetch response. Any other error is set for each partition, where clients expect it.
_OF_FETCH_SESSION: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
_LENGTH_BYTES: Final = 4
_MESSAGE: Final = "injected by a fault rule"


def has_error_response(api_key: int) -> bool:
    """Return True if requests of an API can be answered with an error code."""
    api = lookup(api_key)
    return api is not None and (api_key in (_PRODUCE, _FETCH) or api.error_response is not None)


def answer_error(
    request: HandlerRequest, names: RequestNames, matcher: Matcher, code: ErrorCode, work: Work
) -> None:
    """Answer the error for the partitions that the rule is about, or for the whole request if the rule names none."""
    if request.api_key == _FETCH and code not in _OF_FETCH_SESSION:
        _fail_fetch(request, names, matcher, code, work)
        return
    failed, others = _split(names, matcher)
    if others is None:
        request.services.counts.add(REQUESTS, request.api_key, request.api_version)
        request.decoded = failed
        if request.api_key == _PRODUCE and failed["acks"] == 0:
            # As in Kafka, close the connection, because a client with acks=0 gets no response.
            request.count_error(code)
            request.close()
        else:
            request.reply(_error_fields(request, failed, code))
        return
    errors = _error_fields(request, failed, code)
    intercept(request, lambda answer: _merge_into(answer, names, errors))
    work(request, _encode(request, others))


def _error_fields(request: HandlerRequest, fields: Fields, code: ErrorCode) -> Fields:
    if request.api_key == _PRODUCE:
        return {"responses": [_failed_produce(topic, code) for topic in fields["topic_data"]]}
    if request.api_key == _FETCH:
        return {"error_code": int(code), "session_id": 0, "responses": []}
    api = lookup(request.api_key)
    assert api is not None, "the injector passes requests of unknown APIs on"
    assert api.error_response is not None, "the rule was validated"
    return api.error_response(fields, int(code), _MESSAGE)


def _failed_produce(topic: Fields, code: ErrorCode) -> Fields:
    row = {"error_code": int(code), "base_offset": -1, "log_append_time": -1, "log_start_offset": -1,
           "record_errors": [], "error_message": _MESSAGE}  # fmt: skip
    rows = [{**row, "index": each["index"]} for each in topic["partition_data"]]
    return {**_identity(topic), "partition_responses": rows}


def _failed_fetch(index: int, code: ErrorCode) -> Fields:
    offsets = {"high_watermark": -1, "last_stable_offset": -1, "log_start_offset": -1}
    return {"partition_index": index, "error_code": int(code), **offsets, "aborted_transactions": None,
            "preferred_read_replica": -1, "records": b""}  # fmt: skip


def _split(names: RequestNames, matcher: Matcher) -> tuple[Fields, Fields | None]:
    """Return a request with the rows that fail, and one with the other rows. The second is None if all rows fail."""
    fields = names.fields
    array = next((name for name in TOPIC_ARRAYS if isinstance(fields.get(name), list)), None)
    if array is None or not matcher.names_topic:
        return fields, None
    failed: list[Any] = []
    others: list[Any] = []
    for row in fields[array]:
        name = names.topic_name(row)
        inner = next((each for each in PARTITION_ARRAYS if isinstance(row, dict) and each in row), None)
        if inner is None:
            (failed if matcher.wants(name, -1) else others).append(row)
            continue
        wanted = [each for each in row[inner] if matcher.wants(name, partition_number(each))]
        left = [each for each in row[inner] if not matcher.wants(name, partition_number(each))]
        if wanted:
            failed.append({**row, inner: wanted})
        if left:
            others.append({**row, inner: left})
    return {**fields, array: failed}, {**fields, array: others} if others else None


def _fail_fetch(
    request: HandlerRequest, names: RequestNames, matcher: Matcher, code: ErrorCode, work: Work
) -> None:
    def on_answer(answer: Answer) -> None:
        found = decode_answer(answer)
        if found is None or found.get("error_code"):
            answer.send()
            return
        # The Fetch was handled, so its session now has every partition of this request.
        for topic_id, name, index in _fetched(names):
            if matcher.wants(names.topic_name({"name": name, "topic_id": topic_id}), index):
                _replace_row(found["responses"], topic_id, name, _failed_fetch(index, code))
                request.count_error(code)
        send_fields(answer, found)

    intercept(request, on_answer)
    work(request, _encode(request, {**names.fields, "max_wait": 0}))


def _fetched(names: RequestNames) -> Iterator[tuple[bytes | None, str | None, int]]:
    """Yield (topic id, name, partition) of each partition that a Fetch reads, its session's included."""
    seen = set()
    for topic in names.fields["topics"]:
        for each in topic["partitions"]:
            seen.add((topic.get("topic_id"), topic.get("topic"), each["partition"]))
    for target in names.session_targets():
        seen.add((target.topic_id, target.name, target.index))
    yield from sorted(seen, key=repr)


def _replace_row(responses: list[Fields], topic_id: bytes | None, name: str | None, row: Fields) -> None:
    """Replace the row of a partition in a Fetch response, or add it."""
    topic = next(
        (each for each in responses if (each.get("topic_id"), each.get("topic")) == (topic_id, name)), None
    )
    if topic is None:
        topic = {"topic_id": topic_id, "topic": name, "partitions": []}
        topic = {key: value for key, value in topic.items() if value is not None}
        responses.append(topic)
    others = [each for each in topic["partitions"] if each["partition_index"] != row["partition_index"]]
    topic["partitions"] = [*others, row]


def _merge_into(answer: Answer, names: RequestNames, errors: Fields) -> None:
    """Send the answer of the handled part together with the errors of the other part."""
    found = decode_answer(answer)
    if found is None:
        answer.send()
        return
    for name, rows in errors.items():
        if isinstance(rows, list):
            found[name] = _merged(found.get(name) or [], rows, names)
    answer.request.count_row_errors(errors)
    send_fields(answer, found)


def _merged(rows: list[Any], more: list[Any], names: RequestNames) -> list[Any]:
    """Return `rows` of topics with the rows `more` added. Rows of the same topic are merged."""
    by_topic = {names.topic_name(row): row for row in rows}
    for row in more:
        known = by_topic.get(names.topic_name(row))
        inner = next((name for name, value in row.items() if isinstance(value, list)), None)
        if known is None or inner is None:
            rows.append(row)
        else:
            known[inner] = [*(known.get(inner) or []), *row[inner]]
    return rows


def _identity(topic: Mapping[str, Any]) -> Fields:
    return {name: topic[name] for name in ("name", "topic_id") if name in topic}


def _encode(request: HandlerRequest, fields: Fields) -> bytearray:
    """Return the body of a request with these fields, with the tags of its header.

    Returns a bytearray, because the log writes offsets into the record batches in place.
    """
    key, version = request.api_key, request.api_version
    # Without a client id, the header has its fixed size. The tagged fields of a flexible one belong to the body here.
    frame = codec.encode_request(key, version, 0, None, fields)
    return bytearray(frame[_LENGTH_BYTES + REQUEST_HEADER.size :])


def decode_answer(answer: Answer) -> Fields | None:
    """Return the fields of a response, or None if the request gets no response."""
    if not answer.has_frame:
        return None
    request = answer.request
    return codec.decode_response(request.api_key, request.api_version, answer.frame()[_LENGTH_BYTES:])[1]


def send_fields(answer: Answer, fields: Fields) -> None:
    request = answer.request
    answer.send_frame(
        codec.encode_response(request.api_key, request.api_version, request.correlation_id, fields)
    )
