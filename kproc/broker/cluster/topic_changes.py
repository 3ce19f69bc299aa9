"""TopicChanges: turns CreateTopics, DeleteTopics and CreatePartitions into records. Sans-IO, for the controller only.

The topics of one request succeed or fail one by one. Errors have Kafka's codes and messages.
"""

from __future__ import annotations

import logging
from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from kproc.broker.cluster import records as r
from kproc.broker.cluster.describe import describe_topic
from kproc.broker.cluster.image import SLOT_COUNT, ClusterImage, TopicImage
from kproc.broker.cluster.internal_topics import automatic_wish
from kproc.broker.cluster.mutation_quotas import MutationQuotas, Mutations
from kproc.broker.cluster.topic_config import check_all
from kproc.broker.cluster.topic_names import check_new_name, collision_key
from kproc.broker.config import Config
from kproc.common.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

# Kafka's limit. Otherwise one request could make the controller write a batch of any size.
PARTITIONS_PER_REQUEST_MAX: Final = 10_000
NO_TOPIC_ID: Final = bytes(16)
USE_DEFAULT: Final = -1
THROTTLE: Final = "throttle_time"  # Field of the replies: the throttle time in ms.
# In the body of an operation: names of deleted topics whose directories some Handler may still have open.
HELD: Final = "held"
# The fields of a config in CreateTopics' answer, by their names in DescribeConfigs.
_SHOWN: Final = ("name", "value", "read_only", "config_source", "is_sensitive")

Reply = dict[str, Any]


class PendingTopics:
    """The state that the topics of one request share: names, partitions and quota that its earlier topics have used."""

    __slots__ = ("held", "mutations", "names_by_collision_key", "partition_count", "records", "shown")

    def __init__(self, mutations: Mutations, held: Collection[str] = ()) -> None:
        self.held = held
        self.mutations = mutations
        self.names_by_collision_key: dict[str, str] = {}
        self.partition_count = 0
        self.records: list[r.Record] = []
        # Cached configs of the response, by overrides, because they are 33 rows, and most topics have equal overrides.
        self.shown: dict[tuple[tuple[str, str], ...], list[dict[str, Any]]] = {}


class TopicChanges:
    """Validates topic changes against an image, and returns the records to write.

    Its state: the clients' mutation quotas, and a flag that it has logged a reduced replication factor.
    """

    __slots__ = ("_config", "_has_logged_factor", "_image", "_new_topic_id", "_quotas")

    def __init__(
        self,
        config: Config,
        image: ClusterImage,
        new_topic_id: Callable[[], bytes],
        now_ns: Callable[[], int],
    ) -> None:
        self._config = config
        self._image = image
        self._new_topic_id = new_topic_id
        seconds = config.controller_quota_window_num * config.controller_quota_window_size_seconds
        self._has_logged_factor = False
        self._quotas = MutationQuotas(lambda: image.client_quotas, now_ns, seconds=seconds)

    def create(self, body: dict[str, Any]) -> tuple[Reply, list[r.Record]]:
        """Handle CreateTopics. `body`: the request's fields. Return the reply and the records to write."""
        topics: list[dict[str, Any]] = body["topics"]
        times = Counter(topic["name"] for topic in topics)
        pending = self._new_pending(body)
        results: list[dict[str, Any]] = []
        for topic in _each_once(topics, _name):
            name = topic["name"]
            try:
                # As in ControllerApis.createTopics(), a topic that is named twice is not created at all, because its
                # entries can differ.
                if times[name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                results.append(self._create_one(topic, pending))
            except KafkaError as error:
                results.append(creation_error(name, error.code, error.message))
        reply = {"topics": results, THROTTLE: pending.mutations.throttle_ms}
        return reply, [] if body["validate_only"] else pending.records

    def create_automatically(self, body: dict[str, Any]) -> tuple[Reply, list[r.Record]]:
        """Create topics that a client or a coordinator needs, with the defaults: {"names": [...]}.

        A topic that exists by now is no error, because two clients may have named it at the same time.
        """
        pending = self._new_pending(body)
        results: list[dict[str, Any]] = []
        for name in dict.fromkeys(body["names"]):
            code, message = ErrorCode.NONE, None
            if self._image.topic(name) is None:
                try:
                    self._create_one(automatic_wish(name, self._config), pending)
                except KafkaError as error:
                    code, message = error.code, error.message
            results.append({"name": name, "error_code": int(code), "error_message": message})
        return {"topics": results, THROTTLE: pending.mutations.throttle_ms}, pending.records

    def delete(self, body: dict[str, Any]) -> tuple[Reply, list[r.Record]]:
        """Handle DeleteTopics: {"topics": [{"name", "topic_id"}]}. Each entry has one of the two."""
        wishes: list[dict[str, Any]] = body["topics"]
        clear = [wish for wish in wishes if (wish["name"] is None) != (wish["topic_id"] == NO_TOPIC_ID)]
        times = Counter(_wished(wish) for wish in clear)
        by_id = {wish["topic_id"] for wish in clear if wish["name"] is None}
        # A topic that is given both by name and by id is not deleted, because the request names it twice. It gets one
        # result, by its name.
        by_both = by_id & {topic.topic_id for name in times if (topic := self._image.topic(str(name)))}
        responses = [_deletion(*error) for wish in wishes if (error := _unclear(wish)) is not None]
        records: list[r.Record] = []
        mutations = self._quotas.of(body)
        for wish in _each_once(clear, _wished):
            name, topic_id = wish["name"], wish["topic_id"]
            try:
                # As in ControllerApis.deleteTopics(), a repeated entry deletes nothing, because a deletion
                # cannot be undone.
                if times[_wished(wish)] > 1:
                    what = "id" if name is None else "name"
                    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {what}.")
                if name is None and topic_id in by_both:
                    continue
                topic = self._find(name, topic_id)
                name, topic_id = topic.name, topic.topic_id
                if topic_id in by_both:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST,
                        "The provided topic name maps to an ID that was already supplied.",
                    )
                mutations.charge(len(topic.partitions))
                records.append(r.TopicDeleted(topic_id))
            except KafkaError as error:
                responses.append(_deletion(name, topic_id, error.code, error.message))
            else:
                responses.append(_deletion(name, topic_id, ErrorCode.NONE, None))
        return {"responses": responses, THROTTLE: mutations.throttle_ms}, records

    def add_partitions(self, body: dict[str, Any]) -> tuple[Reply, list[r.Record]]:
        """Handle CreatePartitions. `body`: the request's fields. Return the reply and the records to write."""
        topics: list[dict[str, Any]] = body["topics"]
        times = Counter(topic["name"] for topic in topics)
        pending = self._new_pending(body)
        results: list[dict[str, Any]] = []
        for wish in _each_once(topics, _name):
            name = wish["name"]
            code, message = ErrorCode.NONE, None
            try:
                # As in ControllerApis.createPartitions(), a topic that is named twice does not grow, because
                # the two counts can differ.
                if times[name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                self._grow_one(wish, pending)
            except KafkaError as error:
                code, message = error.code, error.message
            results.append({"name": name, "error_code": int(code), "error_message": message})
        reply = {"results": results, THROTTLE: pending.mutations.throttle_ms}
        return reply, [] if body["validate_only"] else pending.records

    def _new_pending(self, body: dict[str, Any]) -> PendingTopics:
        return PendingTopics(self._quotas.of(body), body.get(HELD, ()))

    def _create_one(self, wish: dict[str, Any], pending: PendingTopics) -> dict[str, Any]:
        name = wish["name"]
        # Kafka Connect's TopicAdmin takes this error for success, because its workers create the same topic
        # at the same time.
        if self._image.topic(name) is not None:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        # Reject the name, because a Handler may still have the old directory of this name open
        # (controller/pending_deletions.py).
        if name in pending.held:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"Topic '{name}' is still being deleted: a Handler that does not answer has the topic's files open.",
            )
        check_new_name(name, ChainMap(pending.names_by_collision_key, self._image.names_by_collision_key))
        given = {row["name"]: row["value"] for row in wish["configs"]}
        nulls = [row["name"] for row in wish["configs"] if row["value"] is None]
        # A null is an error even if a later entry has a value.
        configs = check_all(given | dict.fromkeys(nulls))
        count = self._partition_count(wish)
        # KIP-516: the id tells this topic from a deleted one with the same name. Otherwise a client's old
        # metadata or an old directory could pass for those of the new topic.
        topic_id = self._new_topic_id()
        pending.records += [r.TopicCreated(name, topic_id), self._block(topic_id, 0, count, pending)]
        pending.records += [r.TopicConfigSet(topic_id, key, value) for key, value in configs.items()]
        pending.names_by_collision_key[collision_key(name)] = name
        return {
            "name": name,
            "topic_id": topic_id,
            "error_code": int(ErrorCode.NONE),
            "error_message": None,
            "topic_config_error_code": int(ErrorCode.NONE),
            "num_partitions": count,
            "replication_factor": 1,
            # As in Kafka, values are shown as the request gave them, not as they are stored.
            "configs": self._shown(given, pending),
        }

    def _shown(self, configs: dict[str, str], pending: PendingTopics) -> list[dict[str, Any]]:
        """Return the configs that a new topic has in force, for the response of CreateTopics v5 and later."""
        key = tuple(configs.items())
        if key not in pending.shown:
            rows = describe_topic(configs, self._image, self._config)
            pending.shown[key] = [{name: row[name] for name in _SHOWN} for row in rows]
        return pending.shown[key]

    def _partition_count(self, wish: dict[str, Any]) -> int:
        """Validate the partitions of a CreateTopics entry, and return their number."""
        count, replicas = wish["num_partitions"], wish["replication_factor"]
        # As in ReplicationControlManager.createTopic(), a manual assignment gives both counts, so the request may set
        # neither the number of partitions nor the replication factor.
        if wish["assignments"]:
            self._check_manual(wish, count, replicas)
            return len(wish["assignments"])
        # KIP-464: -1 stands for the broker's default.
        if replicas != USE_DEFAULT and replicas < 1:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if count != USE_DEFAULT and count < 1:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                "Number of partitions was set to an invalid non-positive value.",
            )
        wanted = self._config.default_replication_factor if replicas == USE_DEFAULT else replicas
        if problem := problem_with_factor(wanted, self._config):
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, problem)
        # Log this only once, because a compose file for three brokers asks for three replicas of every topic.
        if wanted > 1 and not self._has_logged_factor:
            self._has_logged_factor = True
            logger.warning(
                "topic %s gets 1 replica instead of %d, because one host keeps one replica "
                "(kproc.clamp.replication.factor); further topics are not logged",
                wish["name"],
                wanted,
            )
        return self._config.num_partitions if count == USE_DEFAULT else int(count)

    def _check_manual(self, wish: dict[str, Any], count: int, replicas: int) -> None:
        for value, what in ((replicas, "replication factor"), (count, "numPartitions")):
            if value != USE_DEFAULT:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"A manual partition assignment was specified, but {what} was not set to -1.",
                )
        # The three checks are those of ReplicationControlManager.createTopic(), in its order, so that clients
        # get its error.
        numbers = Counter(row["partition_index"] for row in wish["assignments"])
        if twice := [number for number, times in numbers.items() if times > 1]:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {twice[0]}",
            )
        self._check_brokers([row["broker_ids"] for row in wish["assignments"]])
        # Partitions have no gaps, because clients take the indexes below the number of partitions for the
        # existing ones.
        if set(numbers) != set(range(len(numbers))):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "partitions should be a consecutive 0-based integer sequence",
            )

    def _check_brokers(self, assignments: Sequence[Sequence[int]]) -> None:
        for broker_ids in assignments:
            if problem := problem_with_assignment(broker_ids, self._config):
                raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)

    def _grow_one(self, wish: dict[str, Any], pending: PendingTopics) -> None:
        topic = self._image.topic(wish["name"])
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        before, count = len(topic.partitions), wish["count"]
        # ReplicationControlManager.createPartitions() has an error of its own for the present count, so that
        # a client that repeats a request learns that the topic has grown already.
        if count == before:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {before} partition(s).")
        # Kafka cannot remove partitions, because their records would be lost and keys would map to others.
        if count < before:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {topic.name} currently has {before} partition(s); "
                f"{count} would not be an increase.",
            )
        # KIP-195: an assignment names only the new partitions, because the present ones keep their replicas.
        if wish["assignments"] is not None:
            if len(wish["assignments"]) != count - before:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Attempted to add {count - before} additional partition(s), but only "
                    f"{len(wish['assignments'])} assignment(s) were specified.",
                )
            self._check_brokers([row["broker_ids"] for row in wish["assignments"]])
        pending.records.append(self._block(topic.topic_id, before, count - before, pending))

    def _block(
        self, topic_id: bytes, first_index: int, count: int, pending: PendingTopics
    ) -> r.PartitionsAdded:
        """Return the record of `count` new partitions, with slots of the shared partition table."""
        if pending.partition_count + count > PARTITIONS_PER_REQUEST_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                "Excessively large number of partitions per request. "
                f"The limit is {PARTITIONS_PER_REQUEST_MAX}.",
            )
        # The partition table in shared memory has a fixed size. A partition without a slot could not publish
        # its offsets.
        if pending.partition_count + count > self._image.free_slot_count:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"This broker can hold {SLOT_COUNT} partitions and has {self._image.partition_count}; "
                f"{count} more do not fit.",
            )
        # Charge first, because the quota may reject the topic (KIP-599), and its slots must then stay free.
        pending.mutations.charge(count)
        places = self._image.next_slots(count, skip=pending.partition_count)
        pending.partition_count += count
        slots, generations = zip(*places, strict=True)
        return r.PartitionsAdded(topic_id, first_index, slots, generations, (0,) * count)

    def _find(self, name: str | None, topic_id: bytes) -> TopicImage:
        """Return the topic that a DeleteTopics entry names, by its name or its id.

        Raise KafkaError if it does not exist.
        """
        if name is None:
            # No id is used twice, so UNKNOWN_TOPIC_ID means that the topic is gone, even if a new one has its
            # name (KIP-516).
            topic = self._image.topic_by_id(topic_id)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            return topic
        topic = self._image.topic(name)
        if topic is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
            )
        return topic


def _each_once(wishes: list[dict[str, Any]], key: Callable[[dict[str, Any]], object]) -> list[dict[str, Any]]:
    """Return the first entry of each topic in a request.

    Clients find results by name, so a repeated name gets one result.
    """
    firsts: dict[object, dict[str, Any]] = {}
    for wish in wishes:
        firsts.setdefault(key(wish), wish)
    return list(firsts.values())


def _unclear(wish: dict[str, Any]) -> tuple[str | None, bytes, ErrorCode, str] | None:
    """Return the error of a DeleteTopics entry with both a name and an id, or with neither. None for a valid entry."""
    name, topic_id = wish["name"], wish["topic_id"]
    # KIP-516: since v6 an entry has either a name or an id. If it has both, they can mean two topics, and a
    # deletion cannot be undone.
    if name is None and topic_id == NO_TOPIC_ID:
        return name, topic_id, ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified."
    if name is not None and topic_id != NO_TOPIC_ID:
        return name, topic_id, ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id."
    return None


def _deletion(name: str | None, topic_id: bytes, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {"name": name, "topic_id": topic_id, "error_code": int(code), "error_message": message}


def _name(wish: dict[str, Any]) -> object:
    return wish["name"]


def _wished(wish: dict[str, Any]) -> object:
    return wish["topic_id"] if wish["name"] is None else wish["name"]


def creation_error(name: str, code: int, message: str | None) -> dict[str, Any]:
    """Return the response's entry for a topic that CreateTopics did not create."""
    return {
        "name": name,
        "topic_id": NO_TOPIC_ID,
        "error_code": int(code),
        "error_message": message,
        "topic_config_error_code": int(ErrorCode.NONE),
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": [],
    }


# Only the replication factor 1 is valid, because one host keeps one replica. kproc.clamp.replication.factor is for test
# suites and compose files that were written for three brokers: a factor above 1 then counts as 1, and other brokers in
# an assignment are ignored.


def problem_with_factor(factor: int, config: Config) -> str | None:
    """Return an error if a topic cannot have this replication factor, or None if it can."""
    if factor <= 1 or config.kproc_clamp_replication_factor:
        return None
    return (
        f"Unable to replicate the partition {factor} time(s): The target replication factor of "
        f"{factor} cannot be reached because only 1 broker(s) are registered or some brokers have all their log "
        "directories cordoned."
    )


def problem_with_assignment(broker_ids: Sequence[int], config: Config) -> str | None:
    """Return an error unless the partition is assigned to this broker, once, and to no other.

    With kproc.clamp.replication.factor any assignment but an empty one is valid.
    """
    if not broker_ids:
        why = "an empty replica list."
    elif config.kproc_clamp_replication_factor:
        return None
    elif others := [broker for broker in broker_ids if broker != config.node_id]:
        why = f"broker {others[0]}, but no such broker is registered."
    elif len(broker_ids) > 1:
        why = f"the broker {broker_ids[0]} more than once."
    else:
        return None
    return f"The manual partition assignment includes {why}"
