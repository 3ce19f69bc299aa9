"""Offsets in transactions over raw frames, from InitProducerId to the marker in the group's partition."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.groups import commit, find_coordinator
from tests.support.raw import Fields, RawClient
from tests.support.topics import fresh_name
from tests.support.wait import wait_until

TRANSACTION = 1  # FindCoordinator's key type.
UNSTABLE = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)


class Transactions:
    """A producer that commits a group's offsets, by requests of before transaction.version 2 or of since."""

    def __init__(self, client: RawClient, topic: str, *, is_new: bool) -> None:
        self._client = client
        self._topic = topic
        self.is_new = is_new
        self.name, self.group = fresh_name("txn"), fresh_name("group")
        find_coordinator(client, self.group)
        wait_until(self._is_found, seconds=20, what="a coordinator of transactions")
        self._who: Fields = {}
        self.init()

    def _is_found(self) -> bool:
        fields = {"key_type": TRANSACTION, "coordinator_keys": [self.name]}
        (row,) = self._client.call(ApiKey.FIND_COORDINATOR, 4, fields)["coordinators"]
        return row["error_code"] == 0

    def init(self) -> None:
        """InitProducerId, as often as it takes for the transaction before to end."""
        fields = {"transactional_id": self.name, "transaction_timeout": 60_000, "producer_id": -1}

        def done() -> Fields | None:
            answer = self._client.call(ApiKey.INIT_PRODUCER_ID, 4, {**fields, "producer_epoch": -1})
            assert answer["error_code"] in (0, ErrorCode.CONCURRENT_TRANSACTIONS), answer
            return answer if answer["error_code"] == 0 else None

        self._take(wait_until(done, seconds=20, what="a producer id"))

    def _take(self, answer: Fields) -> None:
        self._who = {"transactional_id": self.name} | {
            name: answer[name] for name in ("producer_id", "producer_epoch")
        }

    def add(self) -> int:
        """AddOffsetsToTxn."""
        answer = self._client.call(ApiKey.ADD_OFFSETS_TO_TXN, 3, {**self._who, "group_id": self.group})
        return int(answer["error_code"])

    def commit(self, offset: int, *, version: int = 0, **changes: object) -> int:
        """TxnOffsetCommit; its code. CONCURRENT_TRANSACTIONS means that markers are on their way: again."""
        part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": None}
        fields = {**self._who, "group_id": self.group, **changes}
        fields["topics"] = [{"name": self._topic, "partitions": [part]}]

        def done() -> tuple[int] | None:
            version_ = version or (5 if self.is_new else 3)
            (row,) = self._client.call(ApiKey.TXN_OFFSET_COMMIT, version_, fields)["topics"]
            code = row["partitions"][0]["error_code"]
            return None if code == ErrorCode.CONCURRENT_TRANSACTIONS else (code,)

        return wait_until(done, seconds=20, what="an answer about offsets")[0]

    def begin(self, offset: int) -> None:
        """The offset is pending."""
        if not self.is_new:

            def added() -> bool:
                code = self.add()
                assert code in (0, ErrorCode.CONCURRENT_TRANSACTIONS)
                return code == 0

            wait_until(added, seconds=20, what="offsets in the transaction")
        assert self.commit(offset) == 0

    def end(self, *, is_commit: bool) -> None:
        """EndTxn."""
        version = 5 if self.is_new else 3
        answer = self._client.call(ApiKey.END_TXN, version, {**self._who, "committed": is_commit})
        assert answer["error_code"] == 0, answer
        if self.is_new:
            self._take(answer)

    def offset(self, *, is_stable: bool = True) -> tuple[int, int]:
        """(offset, error code) by OffsetFetch."""
        wanted = [{"name": self._topic, "partition_indexes": [0]}]
        fields = {"groups": [{"group_id": self.group, "topics": wanted}], "require_stable": is_stable}
        (row,) = self._client.call(ApiKey.OFFSET_FETCH, 8, fields)["groups"]
        (part,) = row["topics"][0]["partitions"]
        return part["committed_offset"], part["error_code"]

    def stable_offset(self) -> int:
        """What a consumer begins with: it waits for the marker."""
        found = wait_until(
            lambda: None if (row := self.offset()) == UNSTABLE else row, seconds=20, what="a stable offset"
        )
        assert found[1] == 0
        return found[0]


@pytest.fixture(params=[False, True], ids=["added first", "added by the commit"])
def transactions(request: pytest.FixtureRequest, client: RawClient, log: tuple[str, bytes]) -> Transactions:
    return Transactions(client, log[0], is_new=request.param)


@pytest.mark.every_transport
def test_txn_offset_commit_takes_effect_at_commit(transactions: Transactions) -> None:
    for offset, is_commit in ((5, True), (6, False), (7, True)):
        before = transactions.stable_offset()
        transactions.begin(offset)
        assert transactions.offset() == UNSTABLE
        assert transactions.offset(is_stable=False) == (before, 0)
        transactions.end(is_commit=is_commit)
        assert transactions.stable_offset() == (offset if is_commit else before)


def test_later_plain_commit_overrides_transactional_offset(
    transactions: Transactions, client: RawClient, log: tuple[str, bytes]
) -> None:
    transactions.begin(5)
    assert commit(client, transactions.group, log[0], {0: 9}) == {0: 0}
    transactions.end(is_commit=True)
    assert transactions.stable_offset() == 9


def test_txn_offset_commit_without_add_offsets_is_rejected(transactions: Transactions) -> None:
    assert transactions.commit(5, version=3) == ErrorCode.INVALID_TXN_STATE
    assert transactions.commit(5, version=4) == ErrorCode.TRANSACTION_ABORTABLE
    assert transactions.commit(5, version=3, producer_id=2**62) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert transactions.offset() == (-1, 0)


def test_txn_offset_commit_of_fenced_producer_is_rejected(transactions: Transactions) -> None:
    transactions.begin(5)
    transactions._who["producer_epoch"] -= 1
    assert transactions.commit(6) == ErrorCode.INVALID_PRODUCER_EPOCH
    transactions.init()
    assert transactions.stable_offset() == -1
