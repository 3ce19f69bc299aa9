"""ControllerState: the single writer of cluster metadata, without its disk and its rings.

The controller process calls `handle` with an operation, writes the returned records to the MetadataLog, applies them to
the image, and sends them to every Handler as a delta. It responds when all Handlers have acknowledged the delta. So a
client that has the response to a CreateTopics finds its topic on every connection.

Deterministic: a reply depends only on the image, the Config, and the injected clock and source of topic ids.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable
from typing import Any, Final

from kproc.broker.cluster import features
from kproc.broker.cluster import records as r
from kproc.broker.cluster.acls import AclChanges
from kproc.broker.cluster.client_quotas import QuotaChanges
from kproc.broker.cluster.config_changes import CheckTls, ConfigChanges
from kproc.broker.cluster.delegation_tokens import REMOVE_EXPIRED, TokenChanges
from kproc.broker.cluster.image import LEADER_EPOCH_MAX, ClusterImage
from kproc.broker.cluster.metadata_log import MetadataLog
from kproc.broker.cluster.scram_users import UserChanges
from kproc.broker.cluster.topic_changes import NO_TOPIC_ID, TopicChanges
from kproc.broker.config import Config
from kproc.common.clock import Clock
from kproc.common.errors import ErrorCode, FatalError, KafkaError

# Kafka's block size: small, because a crash wastes the rest of a block, and large enough that a Handler seldom asks.
PRODUCER_ID_BLOCK_COUNT: Final = 1000
# Brokers allocate from 0 upwards. Ids above this cannot occur in files that come from another broker.
PRODUCER_ID_MIN: Final = 2**40
# Kafka's Uuid.RESERVED: the zero id, the metadata topic's (one) and that of a lost directory live below 100.
_RESERVED_IDS_BELOW: Final = 100
_MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
FAILURE: Final = "failure"

Reply = dict[str, Any]
Handled = tuple[Reply, list[r.Record]]


def failure_reply(code: ErrorCode, message: str | None) -> Reply:
    """Return the reply to an operation that failed as a whole, for example because the disk is full."""
    return {FAILURE: [int(code), message]}


def failure_of(reply: Reply) -> KafkaError | None:
    """Return the error in a reply of the controller if the operation failed as a whole, or else None.

    If the controller died before it replied, the error is retriable.
    """
    if FAILURE in reply:
        code, message = reply[FAILURE]
        return KafkaError(ErrorCode(code), message)
    if reply.get("lost"):
        return lost_with_controller()
    return None


def lost_with_controller() -> KafkaError:
    """Return the error for a request whose controller died before it replied."""
    # Every client retries this code. After NOT_CONTROLLER a client would look for another broker.
    return KafkaError(
        ErrorCode.REQUEST_TIMED_OUT, "The controller restarted while it worked on this request."
    )


def random_producer_id() -> int:
    """Return a random number, the first producer id that a controller assigns after its start.

    It is at least PRODUCER_ID_MIN, so that the ids differ from those of other brokers, which count from 0.
    """
    return PRODUCER_ID_MIN + uuid.uuid4().int % 2**40 * PRODUCER_ID_BLOCK_COUNT


def random_topic_id() -> bytes:
    """Return a random id by Kafka's rules: UUID version 4, not a reserved one, no leading '-' in base64.

    The last is for command lines, where an id that begins with '-' looks like an option.
    """
    while True:
        topic_id = uuid.uuid4().bytes
        if int.from_bytes(topic_id, "big") >= _RESERVED_IDS_BELOW and _first_character(topic_id) != "-":
            return topic_id


def _first_character(topic_id: bytes) -> str:
    return base64.urlsafe_b64encode(topic_id[:3])[:1].decode("ascii")


def do_at_once(
    state: ControllerState, log: MetadataLog, image: ClusterImage, op: str, body: dict[str, Any]
) -> Reply:
    """Decide on an operation and commit it, before the controller handles requests or while the broker is stopped.

    Raises FatalError if the operation is rejected.
    """
    reply, records = state.handle(op, body)
    failure = failure_of(reply)
    if failure is not None:
        raise FatalError(f"the metadata operation {op} was rejected: {failure}")
    if records:
        log.commit(image, records)
    return reply


class ControllerState:
    """Decides on metadata operations. One instance, in the controller; `image` is the controller's own."""

    __slots__ = (
        "_config", "_config_changes", "_has_allocated_ids", "_image", "_operations", "_random_id", "_topic_changes",
    )  # fmt: skip

    def __init__(
        self,
        config: Config,
        image: ClusterImage,
        clock: Clock,
        *,
        random_id: Callable[[], bytes] = random_topic_id,
        check_tls: CheckTls | None = None,
    ) -> None:
        self._config = config
        self._image = image
        self._random_id = random_id
        self._has_allocated_ids = False
        self._topic_changes = TopicChanges(config, image, self._new_topic_id, clock.now_ns)
        self._config_changes = ConfigChanges(config, image, check_tls)
        self._operations = self._make_operations(clock)

    def _make_operations(self, clock: Clock) -> dict[str, Callable[[dict[str, Any]], Handled]]:
        """Return the functions that decide on metadata operations, by the operations' names."""
        config, image, random_id = self._config, self._image, self._random_id
        acl_changes = AclChanges(lambda: image.acls, random_id)
        tokens = TokenChanges(config, image, clock, random_id)
        return {
            "create_topics": self._topic_changes.create,
            "auto_create_topics": self._topic_changes.create_automatically,
            "delete_topics": self._delete_topics,
            "create_partitions": self._topic_changes.add_partitions,
            "alter_configs": lambda body: self._config_changes.alter(body, incremental=False),
            "incremental_alter_configs": lambda body: self._config_changes.alter(body, incremental=True),
            "create_acls": acl_changes.create,
            "delete_acls": acl_changes.delete,
            "alter_client_quotas": QuotaChanges(lambda: image.client_quotas).alter,
            "create_delegation_token": tokens.create,
            "renew_delegation_token": tokens.renew,
            "expire_delegation_token": tokens.expire,
            REMOVE_EXPIRED: tokens.remove_expired,
            "alter_user_scram_credentials": UserChanges(
                lambda: image.scram_users, lambda: random_id() + random_id()
            ).alter,
            "override_broker_configs": self._override_broker_configs,
            "update_features": lambda body: features.update(image, config.node_id, body),
            "allocate_producer_ids": self._allocate_producer_ids,
            "raise_leader_epochs": self._raise_leader_epochs,
            "set_handler_count": self._set_handler_count,
            "register_cluster": self._register_cluster,
            "start_broker": self._start_broker,
        }

    def handle(self, op: str, body: dict[str, Any]) -> Handled:
        """Return the reply to an operation, and the records to write, which can be none.

        The caller must append and apply the records before it handles the next operation. An operation that fails has
        errors in its reply. Only bugs raise exceptions.
        """
        operation = self._operations.get(op)
        if operation is None:
            raise FatalError(f"no metadata operation is called {op!r}")
        try:
            return operation(body)
        except KafkaError as error:
            return failure_reply(error.code, error.message), []

    def _new_topic_id(self) -> bytes:
        # A repeated id would give a new topic the files of another one. The zero id means "by name" in requests
        # (KIP-516).
        while (topic_id := self._random_id()) in self._image.topics_by_id or topic_id == NO_TOPIC_ID:
            pass
        return topic_id

    def _delete_topics(self, body: dict[str, Any]) -> Handled:
        if not self._config.delete_topic_enable:
            raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
        return self._topic_changes.delete(body)

    def _allocate_producer_ids(self, _body: dict[str, Any]) -> Handled:
        """Return a block of unused ids. It is recorded before it is used, so a crash only wastes ids.

        The first block of each controller begins at random. Partitions remember the producers that wrote into them,
        and the metadata can be older than the partitions: restored from an earlier copy, or copied first from a
        running broker. With the next id of such metadata a new producer would be taken for an earlier one, and its
        first batches for duplicates, which are answered and not stored. Files of another broker have the same effect:
        Kafka begins at 0.
        """
        first = self._image.next_producer_id
        if not self._has_allocated_ids:
            self._has_allocated_ids = True
            # Below 2**53, so that JSON tools which read numbers as doubles show every id exactly.
            first = random_producer_id()
        # Producer ids are positive int64 numbers, so a block must end below 2**63.
        if first > 2**63 - 1 - PRODUCER_ID_BLOCK_COUNT:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "All producer ids have been given out.")
        reply = {"first_producer_id": first, "count": PRODUCER_ID_BLOCK_COUNT}
        return reply, [r.ProducerIdsTaken(first + PRODUCER_ID_BLOCK_COUNT)]

    def _raise_leader_epochs(self, body: dict[str, Any]) -> Handled:
        """Raise leader epochs of a topic's partitions. Body: {"topic_id", "partitions", "at_least"}.

        "at_least", which is optional, has the lowest allowed new epoch of each partition.
        The reply has "leader_epochs" in the order of "partitions".
        """
        topic = self._image.topic_by_id(body["topic_id"])
        # The topic can have been deleted since the coordinator sent this. It then has no more state that needs an
        # epoch.
        if topic is None or not all(0 <= index < len(topic.partitions) for index in body["partitions"]):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        at_least = body.get("at_least") or [0] * len(body["partitions"])
        epochs = [
            # The log may have a higher epoch than the metadata, if its files come from another broker.
            min(LEADER_EPOCH_MAX, max(topic.partitions[index].leader_epoch + 1, least))
            for index, least in zip(body["partitions"], at_least, strict=True)
        ]
        records = [
            r.LeaderEpochRaised(topic.topic_id, index, epoch)
            for index, epoch in zip(body["partitions"], epochs, strict=True)
        ]
        return {"leader_epochs": epochs}, list(records)

    def _set_handler_count(self, body: dict[str, Any]) -> Handled:
        """Set the number of Handlers that own partitions. Body: {"count"}. Writes nothing for an unchanged number."""
        count = body["count"]
        if count < 1:
            raise FatalError(f"the number of Handlers is {count}, but must be at least 1")
        # Write no record for an unchanged count, because it would make every role compute all owners again.
        changed = count != self._image.handler_count
        return {"count": count}, [r.HandlersCounted(count)] if changed else []

    def _override_broker_configs(self, body: dict[str, Any]) -> Handled:
        """Set dynamic configs of a node for kproc's own operations. Body: {"node", "configs"}, validated already."""
        before = self._image.broker_configs.get(body["node"], {})
        changes = [(name, value) for name, value in body["configs"].items() if before.get(name) != value]
        return {}, [r.BrokerConfigSet(body["node"], name, value) for name, value in changes]

    def _register_cluster(self, body: dict[str, Any]) -> Handled:
        """Record the cluster id at the first start. Body: {"cluster_id"}. Later starts must have the same id."""
        cluster_id = body["cluster_id"]
        # Only a new cluster gets the newest feature levels. An older one keeps its levels until somebody raises them.
        # As in Kafka, a new cluster has the configured min.insync.replicas as its dynamic default.
        if not self._image.cluster_id:
            new: list[r.Record] = [r.ClusterRegistered(cluster_id), *features.levels_of_new_cluster()]
            if features.has_default_of_in_sync_replicas():
                in_sync = self._config.wire_value(_MIN_INSYNC_REPLICAS)
                new.append(r.BrokerConfigSet(r.CLUSTER_DEFAULT_NODE, _MIN_INSYNC_REPLICAS, in_sync))
            return {"cluster_id": cluster_id}, new
        # Do not start if the ids differ, because somebody has mixed the data directories of two clusters.
        if self._image.cluster_id != cluster_id:
            raise FatalError(
                f"the metadata log is of cluster {self._image.cluster_id}, but meta.properties is of {cluster_id}: "
                "files of two data directories are mixed"
            )
        if problem := features.unsupported_level(self._image):
            raise FatalError(problem)
        return {"cluster_id": cluster_id}, []

    def _start_broker(self, body: dict[str, Any]) -> Handled:
        """Record a start of the broker: a new broker epoch, and a higher leader epoch of every partition.

        Body: {"was_clean"}, which is True if the last stop was clean.
        """
        epoch = self._image.broker_epoch + 1
        return {"broker_epoch": epoch}, [r.BrokerStarted(epoch, body.get("was_clean", False))]
