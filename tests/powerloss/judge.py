"""The judge of an image of the disk: it opens the image with a broker and checks every promise."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import NamedTuple

from kproc.broker.coordinator.topic_coordinators import partition_for
from kproc.broker.group.coordinator import GroupCoordinator
from kproc.broker.group.records import CommittedOffset
from kproc.broker.storage.checkpoints import LOG_START_FILE
from kproc.broker.storage.fs import StorageFailure
from kproc.broker.storage.log import Log
from kproc.broker.storage.log_start import read_start_mark
from kproc.broker.storage.offset_checkpoints import read_offset_checkpoint
from kproc.common.clock import ManualClock
from kproc.common.errors import Corrupt, ErrorCode, FatalError, KafkaError
from kproc.wire.record_batch import decode_records, parse_header
from tests.powerloss.disk import RecordingFs
from tests.powerloss.judge_transactions import judge_transactions
from tests.powerloss.scene import DATA, GROUP_TOPIC, Content, Ledger, Scene, Violation
from tests.powerloss.share_states import SHARE_TOPIC, problems_of
from tests.powerloss.transactions import STATE_TOPIC


class Batch(NamedTuple):
    """An idempotent producer's batch as the log holds it."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    max_timestamp: int


def judge(
    fs: RecordingFs, clock: ManualClock, scene: Scene, *, handlers: int, second: int, names: str
) -> None:
    """Open an image as a broker does at its start, and check every promise, up to three times.

    `second` seeds what comes between: the host's clock may be set, the broker may be idle for a minute, in which the
    cleaner writes its checkpoints before anybody opens a log, and a crash follows, of the host or of the broker.
    """
    rng = random.Random(second)
    _judge_start_marks(fs, scene)
    shown: dict[bytes, dict[int, Content]] = {}
    committed: set[tuple[str, int]] = set()
    has_transactions = STATE_TOPIC in scene.ledger.topics
    for left in reversed(range(2 if has_transactions else rng.choice((1, 2, 2, 3)))):
        try:
            broker = Scene(fs, clock, rng.getrandbits(32), handlers=handlers, settings={})
        except (Corrupt, FatalError, StorageFailure) as problem:
            raise Violation(f"the broker does not start: {problem!r}") from problem
        # Transactions time out by the host's clock, as in Kafka: set back by a day, it delays their end by a day.
        if rng.random() < 0.3 and not has_transactions:
            broker.step_clock()
        if rng.random() < 0.5:
            broker.idle_minute()
        if not left or has_transactions or rng.random() < 0.5:
            committed = _judge_broker(broker, scene, committed, shown)
            if rng.random() < 0.5:
                broker.idle_minute()
        if left and (has_transactions or rng.random() < 0.7):
            names = rng.choice(("synced", names))
            fs = fs.crash(rng, contents=rng.choice(("synced", "pages")), names=names)


def _judge_start_marks(fs: RecordingFs, scene: Scene) -> None:
    """The mark of a log's start is never ahead of the checkpoint: no DeleteRecords was answered with more."""
    starts = read_offset_checkpoint(fs, DATA, LOG_START_FILE).by_id
    for name, topic_id in scene.ledger.topics.items():
        mark, start = read_start_mark(fs, DATA / f"{name}-0", topic_id), starts.get((topic_id, 0), 0)
        if mark > start:
            raise Violation(f"{name} has {mark} in its directory's mark, the checkpoint says {start}")


def _judge_broker(
    broker: Scene, scene: Scene, committed: set[tuple[str, int]], shown: dict[bytes, dict[int, Content]]
) -> set[tuple[str, int]]:
    """Check every promise; return the transactions that are committed. `committed` were so before."""
    ledger = scene.ledger
    broker.ledger.awaited = ledger.awaited
    found = {name: bytes(each.topic_id) for name, each in broker.image.topics_by_name.items()}
    for name, topic_id in ledger.topics.items():
        if found.get(name) != topic_id:
            raise Violation(f"topic {name} is not there as it was answered")
        if name not in (GROUP_TOPIC, STATE_TOPIC, SHARE_TOPIC):
            _judge_log(broker, name, topic_id, ledger, shown)
    for group_id in ledger.commits:
        _judge_group(broker, group_id, ledger)
    for group_id, epoch in ledger.epochs.items():
        _judge_consumer_group(broker, group_id, epoch)
    for group_id, epoch in ledger.streams_epochs.items():
        _judge_streams_group(broker, group_id, epoch)
    if SHARE_TOPIC in ledger.topics and (problems := problems_of(broker, scene.share_states)):
        raise Violation("; ".join(problems))
    if STATE_TOPIC in ledger.topics:
        now_committed = judge_transactions(broker, scene.transactions.clients)
        if committed - now_committed:
            raise Violation(f"{committed - now_committed} were committed, and are not any more")
        committed = now_committed
    if complaint := ledger.metadata.complaint(broker.image):
        raise Violation(complaint)
    if ledger.gone & set(found.values()):
        raise Violation("a deleted topic is there again")
    return committed


def _judge_log(
    broker: Scene, name: str, topic_id: bytes, ledger: Ledger, shown: dict[bytes, dict[int, Content]]
) -> None:
    """`shown` gets what a consumer reads now; another crash may not take it."""
    topic = broker.image.topics_by_name[name]
    partition = topic.partitions[0]
    try:
        log = broker.handlers[partition.owner].partitions.get(name, partition).log
        content, producers = _all_of(log)
    except (KafkaError, Corrupt, StorageFailure) as problem:
        raise Violation(f"{name} is refused: {problem}") from problem
    sent = ledger.sent.get(topic_id, {})
    kept = {**ledger.kept.get(topic_id, {}), **shown.get(topic_id, {})}
    shown[topic_id] = broker.visible(log, committed=False)
    for offset, found in content.items():
        if found not in sent.get(offset, ()):
            raise Violation(f"{name} has at {offset} what was never sent there")
    if topic.configs.get("cleanup.policy") == "compact":
        _judge_keys(name, content, kept)
    else:
        for offset, wanted in kept.items():
            if offset >= log.state.start_offset and content.get(offset) != wanted:
                raise Violation(
                    f"{name} lost offset {offset}, start {log.state.start_offset}, end {log.state.end_offset}"
                )
    if log.state.start_offset > ledger.asked.get(topic_id, 0) and kept:
        raise Violation(f"{name} begins at {log.state.start_offset}, not at {ledger.asked.get(topic_id, 0)}")
    # A log of which nothing was ever synced may be gone with all that was deleted of it.
    if log.state.start_offset < ledger.starts.get(topic_id, 0) and kept:
        raise Violation(f"{name} begins at {log.state.start_offset}: deleted records are there again")
    for producer_id, batches in producers.items():
        _judge_producer(name, log, producer_id, batches)


def _judge_keys(name: str, content: dict[int, Content], kept: dict[int, Content]) -> None:
    """Of each key the newest record that was answered is there, or a newer one."""
    newest: dict[bytes | None, int] = {}
    for offset, (key, _) in content.items():
        newest[key] = max(offset, newest.get(key, -1))
    for offset, (key, _) in kept.items():
        if newest.get(key, -1) < offset:
            raise Violation(f"{name} lost offset {offset}, the newest of {key!r}")


def _judge_producer(name: str, log: Log, producer_id: int, batches: list[Batch]) -> None:
    """Its sequences follow one another; it goes on behind the last one, and nothing of it is taken twice."""
    for before, after in pairwise(batches):
        if after.base_sequence != before.last_sequence + 1:
            raise Violation(f"{name}: producer {producer_id} has {before}, then {after}")
    # producer.id.expiration.ms: an idle producer is forgotten, as in Kafka. The clock steps forward by days.
    idle_ms = log.state.clock.wall_ms() - batches[-1].max_timestamp
    if log.state.producers.get(producer_id) is None and idle_ms > log.state.config.producer_id_expiration_ms:
        return
    for batch in batches:
        try:
            known = log.state.producers.admit(
                producer_id, 0, batch.base_sequence, batch.last_sequence, transactional=False
            )
        except KafkaError as error:
            if batch is batches[-1] or error.code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise Violation(f"{name}: the last batch of {producer_id} is not known: {error}") from error
            continue
        if known is None or known[1] - known[2] != batch.base_offset:
            raise Violation(f"{name}: {batch} of producer {producer_id} would be taken twice")
    following = batches[-1].last_sequence + 1
    try:
        if log.state.producers.admit(producer_id, 0, following, following, transactional=False) is not None:
            raise Violation(f"{name}: producer {producer_id} is told of a duplicate that is none")
        log.state.producers.admit(producer_id, 0, following + 5, following + 5, transactional=False)
    except KafkaError as error:
        if error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and str(following + 5) in str(error):
            return
        raise Violation(f"{name}: producer {producer_id} cannot go on: {error}") from error
    raise Violation(f"{name}: a gap in the sequences of {producer_id} is not seen")


def _judge_group(broker: Scene, group_id: str, ledger: Ledger) -> None:
    """What the group committed last of what was answered, or something that came after it."""
    found: CommittedOffset | None = _coordinator_of(broker, group_id).offsets.get(group_id, GROUP_TOPIC, 0)
    history, answered = [None, *ledger.commits[group_id]], ledger.answered.get(group_id, 0)
    offset = None if found is None else found.offset
    if offset not in history[answered:]:
        raise Violation(f"group {group_id} has {offset}, {history[answered]} was answered")


def _judge_consumer_group(broker: Scene, group_id: str, epoch: int) -> None:
    """The epochs of a group never go back behind one that a member has learnt."""
    group = _coordinator_of(broker, group_id).describe_consumer_group(group_id)
    if group is None or group.group_epoch < epoch:
        found = None if group is None else group.group_epoch
        raise Violation(f"consumer group {group_id} is at epoch {found}, a member has learnt {epoch}")
    targets = [
        (topic_id, number)
        for member in group.members
        for topic_id, numbers in member.target.items()
        for number in numbers
    ]
    if len(targets) > len(set(targets)):
        raise Violation(f"consumer group {group_id} assigns a partition to two members: {group}")


def _judge_streams_group(broker: Scene, group_id: str, epoch: int) -> None:
    """The epochs of a group never go back, and no task is active in two members."""
    group = _coordinator_of(broker, group_id).streams.describe(group_id)
    if group is None or group.group_epoch < epoch:
        found = None if group is None else group.group_epoch
        raise Violation(f"streams group {group_id} is at epoch {found}, a member has learnt {epoch}")
    for assigned in ([each.assignment for each in group.members], [each.target for each in group.members]):
        tasks = [task for each in assigned for task in each.active]
        if len(tasks) > len(set(tasks)):
            raise Violation(f"streams group {group_id} has a task in two members: {group}")


def _coordinator_of(broker: Scene, group_id: str) -> GroupCoordinator:
    partition = broker.image.topics_by_name[GROUP_TOPIC].partitions[partition_for(group_id, 2)]
    runtime = broker.handlers[partition.owner].coordinators
    while True:
        try:
            coordinator: GroupCoordinator = runtime.by_topic[GROUP_TOPIC].coordinator(partition.index)
            return coordinator
        except KafkaError as error:
            if error.code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                raise Violation(f"group {group_id} has no coordinator: {error}") from error
            runtime.work(broker.clock.now_ns())


def _all_of(log: Log) -> tuple[dict[int, Content], dict[int, list[Batch]]]:
    """Every record by its offset, and the batches of each producer."""
    content: dict[int, Content] = {}
    producers: dict[int, list[Batch]] = {}
    offset = log.state.start_offset
    while offset < log.state.end_offset:
        data, position = log.reader.read_bytes(offset, 1 << 20), 0
        while position + 12 <= len(data):
            end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
            if end > len(data):
                break
            header = parse_header(data, position)
            if header.is_control:
                offset, position = header.last_offset + 1, end
                continue
            if header.record_count:
                for record in decode_records(data[position:end]):
                    content[record.offset] = record.key, record.value
            if header.producer_id >= 0 and not header.is_transactional:
                batch = Batch(
                    header.base_sequence, header.last_sequence, header.base_offset, header.max_timestamp
                )
                producers.setdefault(header.producer_id, []).append(batch)
            offset = header.last_offset + 1
            position = end
        if not position:
            raise Corrupt(f"nothing can be read at {offset}")
    return {at: each for at, each in content.items() if at >= log.state.start_offset}, producers
