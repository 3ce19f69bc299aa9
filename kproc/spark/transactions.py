"""Transactions: the requests of the commit protocol in `exactly_once` to a Kafka cluster.

Each method waits for the response and retries retriable errors. The requests use the first version of the transaction
protocol (TV1), which brokers of `transaction.version` 2 support, too. In TV1 an epoch identifies one transaction of a
task from its beginning to its end, and every process that knows the epoch can send EndTxn, any number of times. In TV2
(KIP-890) each end raises the epoch, and only the process that gets the response knows the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from kproc.client import ApiError, ClientError, error_text
from kproc.client.requests import numbers_by_topic
from kproc.common.errors import ErrorCode
from kproc.spark.brokers import RETRIABLE, Cluster, Unreachable, pause
from kproc.spark.exactly_once import Mark, Unsettled
from kproc.spark.lane import ProduceFailed, ProducerIdentity
from kproc.spark.offsets import TopicPartition
from kproc.wire.header import ApiKey

# Topic under which marks are committed as offsets. Brokers delete the offsets of a deleted topic, and nobody deletes
# this one.
MARK_TOPIC: Final = "__consumer_offsets"
# Error codes by which a coordinator says that the transaction with this producer epoch is not open any more.
_ENDED: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
# Error codes after which the coordinator must be looked up again.
_ELSEWHERE: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_WAIT_MS: Final = 100
_ADVICE: Final = {
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        ": the broker has no transactions, or this user may not use them; delivery=at-least-once needs none"
    ),
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
        ": kafka.transaction.timeout.ms is above the broker's transaction.max.timeout.ms"
    ),
    ErrorCode.OFFSET_METADATA_TOO_LARGE: ": the broker's offset.metadata.max.bytes is below 4096",
}


class Transactions:
    """Client of the coordinators of a cluster. One thread owns it and its Cluster."""

    def __init__(self, cluster: Cluster, *, timeout_ms: int, limit_ms: int) -> None:
        """Create a client of the transaction coordinators of `cluster`.

        timeout_ms: age at which a broker aborts an open transaction. limit_ms: how long to retry a request.
        """
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._limit_ms = limit_ms
        self._coordinators: dict[tuple[str, bool], int] = {}

    def init(self, transactional_id: str) -> ProducerIdentity:
        """Request a new producer epoch by InitProducerId, which aborts an open transaction of the old epoch.

        Wait for its end.
        """
        fields = {"transactional_id": transactional_id, "transaction_timeout": self._timeout_ms}
        answer = self._send_request(ApiKey.INIT_PRODUCER_ID, transactional_id, fields, newest=4)
        self._check(answer["error_code"], f"InitProducerId of {transactional_id}")
        return ProducerIdentity(answer["producer_id"], answer["producer_epoch"], transactional_id)

    def add(self, identity: ProducerIdentity, places: Iterable[TopicPartition]) -> None:
        """Add partitions to the transaction. Raise ProduceFailed if the transaction is not open any more."""
        code = self._add(identity, places)
        if code in _ENDED:
            raise ProduceFailed(
                f"the transaction {identity.transactional_id} is not open any more: {error_text(code)}. "
                "Another attempt of the task has begun, or kafka.transaction.timeout.ms is over"
            )
        self._check(code, f"AddPartitionsToTxn of {identity.transactional_id}")

    def is_open(self, identity: ProducerIdentity, place: TopicPartition) -> bool:
        """Return True if the transaction is open, by adding a partition that it contains already."""
        code = self._add(identity, [place])
        if code not in _ENDED:
            self._check(code, f"AddPartitionsToTxn of {identity.transactional_id}")
        return code not in _ENDED

    def _add(self, identity: ProducerIdentity, places: Iterable[TopicPartition]) -> int:
        fields = {
            "v3_and_below_transactional_id": identity.transactional_id,
            "v3_and_below_producer_id": identity.producer_id,
            "v3_and_below_producer_epoch": identity.epoch,
            "v3_and_below_topics": [
                {"name": topic, "partitions": numbers} for topic, numbers in numbers_by_topic(places).items()
            ],
        }
        # Use version 3 of AddPartitionsToTxn at most, because later versions are for brokers only (KIP-890).
        answer = self._send_request(
            ApiKey.ADD_PARTITIONS_TO_TXN, _name(identity), fields, newest=3, codes_of=_partition_codes
        )
        # If a broker cannot add one of the partitions, it adds none, and answers OPERATION_NOT_ATTEMPTED for the
        # others.
        codes = [code for code in _partition_codes(answer) if code]
        return next((code for code in codes if code != ErrorCode.OPERATION_NOT_ATTEMPTED), 0)

    def mark(self, identity: ProducerIdentity, marks: Mapping[int, Mark]) -> None:
        """Add offsets to the transaction, for the group with the name of the transactional id.

        The transaction's commit makes the offsets visible.
        """
        group = _name(identity)
        fields: dict[str, Any] = {
            "transactional_id": group,
            "producer_id": identity.producer_id,
            "group_id": group,
            "producer_epoch": identity.epoch,
        }
        # KIP-98: the group's internal partition must be added to the transaction before its offsets. Clients of
        # transaction version 2 (KIP-890) need no such request, but this client uses version 1.
        answer = self._send_request(ApiKey.ADD_OFFSETS_TO_TXN, group, fields, newest=3)
        self._check(answer["error_code"], f"AddOffsetsToTxn of {group}")
        rows = [
            {
                "partition_index": partition,
                "committed_offset": mark.offset,
                "committed_leader_epoch": -1,
                "committed_metadata": mark.text,
            }
            for partition, mark in marks.items()
        ]
        fields |= {
            # KIP-447: a generation and member id would let the broker reject a commit of an old group member. A mark
            # belongs to no member.
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": MARK_TOPIC, "partitions": rows}],
        }
        answer = self._send_request(
            ApiKey.TXN_OFFSET_COMMIT, group, fields, newest=3, codes_of=_topic_codes, is_group=True
        )
        for code in _topic_codes(answer):
            self._check(code, f"TxnOffsetCommit of {group}")

    def finish(self, identity: ProducerIdentity, *, commit: bool) -> bool:
        """Commit or abort a transaction by EndTxn.

        Return False if it was fenced, ended in the other way, or never begun.
        """
        fields = {
            "transactional_id": identity.transactional_id,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.epoch,
            "committed": commit,
        }
        # Use version 3 at most: EndTxn from version 5 on raises the epoch (KIP-890), and the sink uses the first
        # transaction version.
        code = self._send_request(ApiKey.END_TXN, _name(identity), fields, newest=3)["error_code"]
        if code in _ENDED:
            return False
        self._check(code, f"EndTxn of {identity.transactional_id}")
        return True

    def marks(self, group: str, partitions: Sequence[int]) -> dict[int, Mark]:
        """Return the group's committed offset for each partition of MARK_TOPIC, or Mark(-1, "") for one without.

        Raises Unsettled while an open transaction holds pending offsets of the group.
        """
        wanted = [{"name": MARK_TOPIC, "partition_indexes": list(partitions)}]
        fields = {"groups": [{"group_id": group, "topics": wanted}], "require_stable": True}
        answer = self._send_request(
            ApiKey.OFFSET_FETCH, group, fields, newest=8, codes_of=_group_codes, is_group=True
        )
        if "groups" not in answer:
            raise ClientError(
                f"{self._cluster.bootstrap} is too old for delivery=exactly-once: Kafka 3.0 is needed"
            )
        found: dict[int, Mark] = {}
        for code in _group_codes(answer):
            self._check(code, f"OffsetFetch of {group}")
        for topic in answer["groups"][0]["topics"]:
            for row in topic["partitions"]:
                if row["error_code"] == ErrorCode.UNSTABLE_OFFSET_COMMIT:
                    raise Unsettled(
                        f"an open transaction has pending offsets of group {group}; they are not final yet"
                    )
                self._check(row["error_code"], f"OffsetFetch of {group}")
                found[row["partition_index"]] = Mark(row["committed_offset"], row["metadata"] or "")
        return {partition: found.get(partition, Mark(-1, "")) for partition in partitions}

    def open_ids(self, prefix: str) -> list[str]:
        """Return the transactional ids with this prefix that have an open transaction, from all coordinators."""
        found: list[str] = []
        for node in self._cluster.nodes():
            # Do not list prepared transactions (PrepareCommit, PrepareAbort): their outcome is decided, and the
            # coordinator ends them.
            fields = {"state_filters": ["Ongoing"], "producer_id_filters": []}
            answer = self._cluster.call(ApiKey.LIST_TRANSACTIONS, fields, node=node, limit_ms=self._limit_ms)
            self._check(answer["error_code"], "ListTransactions")
            found += [row["transactional_id"] for row in answer["transaction_states"]]
        return sorted(each for each in found if each.startswith(prefix))

    def wait(self) -> None:
        """Sleep for 100 ms before the caller's next attempt."""
        pause(_WAIT_MS)

    # -- how

    def _send_request(
        self,
        api_key: ApiKey,
        name: str,
        fields: Mapping[str, Any],
        *,
        newest: int,
        codes_of: Callable[[Mapping[str, Any]], list[int]] | None = None,
        is_group: bool = False,
    ) -> dict[str, Any]:
        """Send a request to the coordinator and return its first response without a retriable error.

        name: transactional id or, with `is_group`, group. newest: highest version to use. codes_of: function that
        returns all error codes of the response.
        """
        key = (name, is_group)

        def attempt() -> dict[str, Any]:
            node = self._coordinator(name, is_group=is_group)
            try:
                answer = self._cluster.call(api_key, fields, node=node, newest=newest, limit_ms=0)
            except Unreachable as error:
                del self._coordinators[key]
                # If a broker does not respond, another one can have become the coordinator. So the next attempt looks
                # it up again.
                raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from None
            codes = [answer["error_code"]] if codes_of is None else codes_of(answer)
            for code in codes:
                if code in RETRIABLE:
                    if code in _ELSEWHERE:
                        del self._coordinators[key]
                    raise ApiError(code, f"{api_key.name} of {name}: {error_text(code)}")
            return answer

        try:
            return self._cluster.retrying(f"{api_key.name} of {name}", attempt, limit_ms=self._limit_ms)
        except ApiError as error:
            raise _advised(error.code, str(error)) from None

    def _coordinator(self, name: str, *, is_group: bool) -> int:
        """Return the node id of the coordinator of a transactional id or, with `is_group`, of a group."""
        key = (name, is_group)
        node = self._coordinators.get(key)
        if node is None:
            # Cache the coordinator, because FindCoordinator costs a round trip and coordinators seldom move.
            node = self._cluster.coordinator(name, of_transactions=not is_group, limit_ms=self._limit_ms)
            self._coordinators[key] = node
        return node

    def _check(self, code: int, what: str) -> None:
        if code:
            raise _advised(code, f"{what}: {error_text(code)}")


class OpenTransaction:
    """A task's open transaction, for its BatchProducer. It records which partitions were added to the transaction."""

    def __init__(self, transactions: Transactions, identity: ProducerIdentity) -> None:
        self.identity = identity
        self.places: dict[TopicPartition, None] = {}
        """Partitions in the transaction, in the order in which they were added."""
        self._transactions = transactions

    def add(self, places: Iterable[TopicPartition]) -> None:
        """Add partitions that are not in the transaction yet.

        Raise ProduceFailed if the transaction is not open any more.
        """
        new = [place for place in places if place not in self.places]
        if new:
            self._transactions.add(self.identity, new)
            self.places |= dict.fromkeys(new)


def _advised(code: int, text: str) -> ApiError:
    return ApiError(code, text + next((advice for each, advice in _ADVICE.items() if each == code), ""))


def _name(identity: ProducerIdentity) -> str:
    assert identity.transactional_id is not None
    return identity.transactional_id


def _partition_codes(answer: Mapping[str, Any]) -> list[int]:
    topics = answer["results_by_topic_v3_and_below"]
    return [row["partition_error_code"] for topic in topics for row in topic["results_by_partition"]]


def _topic_codes(answer: Mapping[str, Any]) -> list[int]:
    return [row["error_code"] for topic in answer["topics"] for row in topic["partitions"]]


def _group_codes(answer: Mapping[str, Any]) -> list[int]:
    return [group["error_code"] for group in answer.get("groups", ())]
