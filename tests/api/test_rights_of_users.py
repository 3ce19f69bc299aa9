"""Users with and without rights on a running broker: rules hold on connections that are old, parked, moved or routed
past their home, and a Handler's death makes nobody somebody else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import TRANSACTIONAL
from tests.support.acls import acl_fields
from tests.support.command_line import call_kproc, told
from tests.support.groups import commit, find_coordinator
from tests.support.raw import NO_TOPIC_ID, Closed, RawClient, batch, fetch_fields, produce_fields, values_of
from tests.support.secured import SecuredBroker, log_in
from tests.support.topics import fresh_name
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.own_broker, pytest.mark.transports("process")]

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
# ANONYMOUS is a super user, as where brokers and tools have a listener of their own: nobody whom a Handler does not
# know must be taken for it.
SETTINGS = {
    "authorizer.class.name": STANDARD,
    "super.users": "User:alice;User:ANONYMOUS",
    "num.io.threads": "2",
    "num.network.threads": "2",
    "auto.create.topics.enable": "true",
}
PARTITIONS = 8  # Both Handlers own some.
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5
READ, WRITE, DELETE, ALTER, DESCRIBE = 3, 4, 6, 7, 8
DENIED = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("data"), mechanisms=("PLAIN",), settings=SETTINGS) as broker:
        yield broker


def client_of(broker: SecuredBroker, user: str) -> RawClient:
    client = RawClient(broker.bootstrap)
    assert log_in(client, user)["error_code"] == 0
    return client


@pytest.fixture
def alice(broker: SecuredBroker) -> Iterator[RawClient]:
    with client_of(broker, "alice") as client:
        yield client


@pytest.fixture
def bob(broker: SecuredBroker) -> Iterator[RawClient]:
    with client_of(broker, "bob") as client:
        yield client


def change(alice: RawClient, name: str, *operations: int, removes: bool = False, kind: int = TOPIC) -> None:
    """Give bob rights to a resource, or take away all rules that name it."""
    if removes:
        texts = {"resource_name_filter": name, "principal_filter": None, "host_filter": None}
        codes = {"resource_type_filter": kind, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
        (result,) = alice.call(ApiKey.DELETE_ACLS, 3, {"filters": [texts | codes]})["filter_results"]
        assert (result["error_code"], len(result["matching_acls"])) == (0, len(operations))
        return
    rules = [acl_fields(kind, name, operation, principal="User:bob") for operation in operations]
    answer = alice.call(ApiKey.CREATE_ACLS, 3, {"creations": rules})
    assert [row["error_code"] for row in answer["results"]] == [0] * len(rules)


@pytest.fixture
def log(alice: RawClient) -> tuple[str, bytes]:
    """A topic of which bob may do nothing."""
    name = fresh_name("rights")
    return name, alice.create_topic(name, partitions=PARTITIONS)


def produced(client: RawClient, name: str, *, acks: int = 1) -> list[int]:
    """The error code of each partition, each in a request of its own, so that it goes straight to its owner."""
    return [
        client.produce(name, batch(b"x"), partition=index, acks=acks)["error_code"]
        for index in range(PARTITIONS)
    ]


def fetched(client: RawClient, name: str) -> list[tuple[int, int]]:
    """Error code and count of records of each partition."""
    rows = [client.fetch(name, 0, partition=index) for index in range(PARTITIONS)]
    return [(row["error_code"], len(values_of(row["records"]))) for row in rows]


def test_acl_removal_stops_repeated_produce_and_fetch(
    alice: RawClient, bob: RawClient, log: tuple[str, bytes]
) -> None:
    """Requests that repeat the last one are served without looking anything up, by the owner they are routed to."""
    name, _ = log
    assert produced(bob, name) == [DENIED] * PARTITIONS
    change(alice, name, READ, WRITE)
    for _ in range(4):
        assert produced(bob, name) == [0] * PARTITIONS
    for _ in range(3):
        assert fetched(bob, name) == [(0, 4)] * PARTITIONS
    change(alice, name, READ, WRITE, removes=True)
    for _ in range(2):
        assert produced(bob, name) == [DENIED] * PARTITIONS
        assert fetched(bob, name) == [(DENIED, 0)] * PARTITIONS
    assert alice.end_offset(name) == 4
    change(alice, name, WRITE)
    assert produced(bob, name) == [0] * PARTITIONS
    assert fetched(bob, name) == [(DENIED, 0)] * PARTITIONS
    change(alice, name, WRITE, removes=True)


def test_produce_acks_0_without_right_stores_nothing(
    broker: SecuredBroker, alice: RawClient, log: tuple[str, bytes]
) -> None:
    name, _ = log
    with client_of(broker, "bob") as bob:
        bob.send(ApiKey.PRODUCE, 9, produce_fields([(name, NO_TOPIC_ID, [(0, batch(b"x"))])], acks=0))
        assert bob.is_closed_by_broker()
    assert alice.end_offset(name) == 0


def test_fetch_session_drops_partitions_after_acl_removal(
    alice: RawClient, bob: RawClient, log: tuple[str, bytes]
) -> None:
    name, topic_id = log
    change(alice, name, READ)
    assert produced(alice, name) == [0] * PARTITIONS
    everything = [(name, topic_id, [(index, 0) for index in range(PARTITIONS)])]
    first = bob.call(ApiKey.FETCH, 13, fetch_fields(everything, session=(0, 0)))
    session = first["session_id"]
    assert session
    assert sum(len(values_of(part["records"])) for part in first["responses"][0]["partitions"]) == PARTITIONS
    change(alice, name, READ, removes=True)
    assert produced(alice, name) == [0] * PARTITIONS
    later = bob.call(ApiKey.FETCH, 13, fetch_fields([], session=(session, 1)))
    parts = [part for topic in later["responses"] for part in topic["partitions"]]
    assert len(parts) == PARTITIONS
    assert {(part["error_code"], part["records"] or b"") for part in parts} == {(DENIED, b"")}


def test_parked_fetch_gets_no_records_after_acl_removal(
    alice: RawClient, bob: RawClient, log: tuple[str, bytes]
) -> None:
    """Kafka gives it to whoever might read when he asked, however long he waits."""
    name, topic_id = log
    everywhere = [(index, 0) for index in range(PARTITIONS)]

    def wait_for(partitions: list[tuple[int, int]]) -> int:
        wanted = fetch_fields([(name, topic_id, partitions)], max_wait_ms=60_000)
        return bob.send(ApiKey.FETCH, 13, wanted)

    def received(number: int) -> list[dict[str, Any]]:
        got, answer = bob.receive(ApiKey.FETCH, 13)
        assert got == number
        return [part for topic in answer["responses"] for part in topic["partitions"]]

    change(alice, name, READ)
    for round_, partitions in enumerate(([(0, 0)], everywhere, [(0, 0)])):
        if round_ == 2:  # By the way that is learnt from the request before.
            assert all(part["records"] for _ in range(3) for part in received(wait_for(partitions)))
        number = wait_for([(index, round_) for index, _ in partitions])
        wait_until(lambda: _parked(alice), what="bob waits")
        change(alice, name, READ, removes=True)
        assert produced(alice, name) == [0] * PARTITIONS
        parts = received(number)
        assert len(parts) == len(partitions)
        assert not any(part["records"] for part in parts)
        change(alice, name, READ)
    change(alice, name, READ, removes=True)


def _parked(alice: RawClient) -> int:
    """How many requests wait."""
    rows = _operate(alice, op="status")["result"]["processes"]
    return sum(row.get("parked", 0) for row in rows)


def test_users_on_one_processor_keep_their_own_rights(broker: SecuredBroker, log: tuple[str, bytes]) -> None:
    """The same bytes from many connections, by turns: what is remembered of one is nothing to the others."""
    name, _ = log
    clients = [(user, client_of(broker, user)) for user in ("alice", "bob") * 4]
    try:
        for _ in range(3):
            for user, client in clients:
                assert produced(client, name) == [0 if user == "alice" else DENIED] * PARTITIONS
                row = client.fetch(name, 0)
                assert (row["error_code"], bool(row["records"])) == (
                    (0, True) if user == "alice" else (DENIED, False)
                )
    finally:
        for _, client in clients:
            client.close()


def test_topic_auto_creation_needs_create_right(alice: RawClient, bob: RawClient) -> None:
    name = fresh_name("unmade")
    wanted = {"topics": [{"name": name, "topic_id": NO_TOPIC_ID}], "allow_auto_topic_creation": True}
    (row,) = bob.call(ApiKey.METADATA, 12, wanted)["topics"]
    assert (row["error_code"], row["topic_id"]) == (DENIED, NO_TOPIC_ID)
    change(alice, name, DESCRIBE)
    (row,) = bob.call(ApiKey.METADATA, 12, wanted)["topics"]
    assert (row["error_code"], row["topic_id"]) == (DENIED, NO_TOPIC_ID)
    change(alice, name, DESCRIBE, removes=True)
    assert name not in [row["name"] for row in alice.call(ApiKey.METADATA, 12, {"topics": None})["topics"]]


def test_acl_host_is_the_client_address(
    broker: SecuredBroker, alice: RawClient, log: tuple[str, bytes]
) -> None:
    name, _ = log
    change(alice, name, WRITE)
    deny = acl_fields(TOPIC, name[:-1], WRITE, host="127.0.0.2", is_prefix=True, allows=False)
    alice.call(ApiKey.CREATE_ACLS, 3, {"creations": [deny]})
    for address, code in (("127.0.0.1", 0), ("127.0.0.2", DENIED), ("127.0.0.20", 0)):
        with RawClient(broker.bootstrap, source=address) as bob:
            log_in(bob, "bob")
            assert bob.produce(name, batch(b"x"))["error_code"] == code
    change(alice, name, WRITE, removes=True)


def _operate(client: RawClient, **wanted: Any) -> dict[str, Any]:
    """One of kproc's own operations."""
    body = json.dumps(wanted).encode()
    head = (30_000).to_bytes(2, "big") + bytes(2) + (7).to_bytes(4, "big") + b"\xff\xff"
    client.send_bytes((len(head) + len(body)).to_bytes(4, "big") + head + body)
    return dict(json.loads(client.receive_frame()[4:]))


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[SecuredBroker]:
    """A broker whose processes the test changes."""
    with SecuredBroker(tmp_path / "data", mechanisms=("PLAIN",), settings=SETTINGS) as broker:
        yield broker


@pytest.mark.long
def test_connections_keep_principal_while_processors_scale(changing: SecuredBroker) -> None:
    alice = client_of(changing, "alice")
    name, mine = "alices", "bobs"
    alice.create_topic(name, partitions=PARTITIONS)
    alice.create_topic(mine)
    change(alice, mine, WRITE)
    clients = [client_of(changing, "bob") for _ in range(6)]
    try:
        for processors in (3, 1, 2):
            assert not _operate(alice, op="scale", processors=processors)["error"]
            for bob in clients:
                assert bob.produce(mine, batch(b"x"))["error_code"] == 0
                assert produced(bob, name) == [DENIED] * PARTITIONS
    finally:
        for client in (*clients, alice):
            client.close()


@pytest.mark.long
def test_connections_keep_principal_when_a_handler_dies(changing: SecuredBroker) -> None:
    """Its successor is told of every connection; what it might not know yet it refuses."""
    alice = client_of(changing, "alice")
    name, mine = "alices", "bobs"
    for each in (name, mine):
        alice.create_topic(each, partitions=PARTITIONS)
    change(alice, mine, WRITE)
    clients = [client_of(changing, "bob") for _ in range(4)]
    try:
        for bob in clients:
            assert produced(bob, mine) == [0] * PARTITIONS
        status = _operate(alice, op="status")["result"]
        (pid,) = (row["pid"] for row in status["processes"] if (row["role"], row["index"]) == ("handler", 1))
        os.kill(pid, signal.SIGKILL)
        for bob in clients:
            try:
                for _ in range(20):
                    codes = set(produced(bob, name))
                    assert 0 not in codes
                    assert DENIED in codes
                    produced(bob, mine)
            except Closed:
                continue  # Its home was the one that died.
        with client_of(changing, "bob") as bob:
            wait_until(
                lambda: produced(bob, mine) == [0] * PARTITIONS, what="the partitions are served again"
            )
            assert produced(bob, name) == [DENIED] * PARTITIONS
        with client_of(changing, "alice") as again:
            assert [again.end_offset(name, partition=index) for index in range(PARTITIONS)] == [
                0
            ] * PARTITIONS
    finally:
        for client in (*clients, alice):
            client.close()


@pytest.mark.parametrize(
    "op", ["status", "clients", "topics", "logs", "scale", "rebalance", "kill_client", "stop", "stacks"]
)
def test_kproc_operations_without_right_are_denied(bob: RawClient, alice: RawClient, op: str) -> None:
    answer = _operate(bob, op=op)
    assert answer["error"]
    assert answer["result"] is None
    assert not _operate(alice, op="ping")["error"]


@pytest.fixture
def properties(broker: SecuredBroker, tmp_path: Path) -> str:
    """A file for commands by which bob logs in."""
    path = tmp_path / "bob.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in broker.java(user="bob").items()))
    path.chmod(0o600)
    return str(path)


def test_overviews_show_dashes_for_what_a_user_may_not_see(
    broker: SecuredBroker,
    alice: RawClient,
    log: tuple[str, bytes],
    properties: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, _ = log
    alice.produce(name, batch(b"x"))
    find_coordinator(alice, name)
    wait_until(lambda: commit(alice, name, name, {0: 0})[0] == 0, what="a committed offset")
    change(alice, name, DESCRIBE)
    change(alice, name, DESCRIBE, kind=GROUP)
    options = ("-b", broker.bootstrap, "--command-config", properties)
    done = call_kproc(capsys, "topic", "list", "-i", "0.01", *options)
    (row,) = [line.split() for line in told(done).splitlines() if line.startswith(name)]
    assert row[:6] == [name, str(PARTITIONS), "-", "-", "-", "-"]
    assert done.stderr == (
        f"kproc: not shown: traffic out: {broker.bootstrap}: User:bob may not do that: it needs the right DESCRIBE on "
        "the cluster\n"
        "kproc: not shown: sizes: they need the right DESCRIBE on the cluster\n"
        "kproc: not shown: retention of some topics: no right on the topic; see kproc acl check "
        "(TOPIC_AUTHORIZATION_FAILED)\n"
    )
    done = call_kproc(capsys, "group", "list", *options)
    (row,) = [line.split() for line in told(done).splitlines() if line.startswith(name)]
    assert row[:5] == [name, "Empty", "0", "1", "-"]
    assert done.stderr == "kproc: not shown: the age of lags: it needs the right READ on the topics\n"
    done = call_kproc(capsys, "topic", "describe", name, *options)
    assert told(done).splitlines()[2].split()[3:6] == ["0", "1", "1"]
    assert done.stderr.count("\n") == 2


def test_command_without_right_prints_the_denial(broker: SecuredBroker, properties: str) -> None:
    command = [sys.executable, "-m", "kproc", "acl", "list", "--bootstrap", broker.bootstrap]
    done = subprocess.run(
        [*command, "--command-config", properties],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "kproc: rules: access denied: this needs ALTER or DESCRIBE on the cluster "
        "(CLUSTER_AUTHORIZATION_FAILED)\n"
    )


def test_dry_run_without_right_fails_as_the_command(
    broker: SecuredBroker,
    alice: RawClient,
    log: tuple[str, bytes],
    properties: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The dry run only described the topic, the rules or the user, so it promised what the broker then denied."""
    name, _ = log
    options = ("-b", broker.bootstrap, "--command-config", properties)
    change(alice, name, DESCRIBE)
    change(alice, "kafka-cluster", DESCRIBE, kind=CLUSTER)
    for command in (f"topic delete {name}", f"topic trim {name} --before end", "acl delete bob", "user delete bob"):
        for option in ("--dry-run", "--yes"):
            done = call_kproc(capsys, *command.split(), option, *options)
            assert (done.returncode, done.stdout) == (1, ""), command
            assert "_AUTHORIZATION_FAILED)" in done.stderr, (command, done.stderr)
    change(alice, name, DELETE)
    would = call_kproc(capsys, "topic", "delete", name, "--dry-run", *options)
    assert told(would).startswith(f"would delete {name} ")
    change(alice, "kafka-cluster", DESCRIBE, removes=True, kind=CLUSTER)


def denial(capsys: pytest.CaptureFixture[str], command: str, dry: str, execute: str, *options: str) -> str:
    """Return the error of a command without the right to it, which its dry run must have, too."""
    errors = []
    for option in (dry, execute):
        done = call_kproc(capsys, *command.split(), option, *options)
        assert (done.returncode, done.stdout) == (1, ""), (command, option)
        errors.append(done.stderr)
    assert errors[0] == errors[1]
    return errors[0]


def test_dry_run_on_group_without_right_fails_as_the_command(
    broker: SecuredBroker,
    alice: RawClient,
    log: tuple[str, bytes],
    properties: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, _ = log
    options = ("-b", broker.bootstrap, "--command-config", properties)
    find_coordinator(alice, name)
    wait_until(lambda: commit(alice, name, name, {0: 0})[0] == 0, what="a committed offset")
    change(alice, name, READ)
    change(alice, name, DESCRIBE, kind=GROUP)
    deletion, seek = f"group delete {name}", f"group seek {name} --to end -t {name}"
    assert "(GROUP_AUTHORIZATION_FAILED)" in denial(capsys, deletion, "--dry-run", "--yes", *options)
    assert "(GROUP_AUTHORIZATION_FAILED)" in denial(capsys, seek, "--dry-run", "--execute", *options)
    change(alice, name, READ, DELETE, kind=GROUP)
    change(alice, name, READ, removes=True)
    change(alice, name, DESCRIBE)
    done = call_kproc(capsys, *seek.split(), *options)
    assert done.stderr == f"kproc: {name}: no right on the topic; see kproc acl check (TOPIC_AUTHORIZATION_FAILED)\n"
    change(alice, name, READ)
    for command in (f"{deletion} --dry-run", seek, f"group seek {name}-absent --to end -t {name}"):
        # The group of the last one does not exist, but its name has no rule.
        done = call_kproc(capsys, *command.split(), *options)
        assert done.returncode == ("absent" in command), done.stderr
        assert "did not check" not in done.stderr


def test_dry_run_of_abort_without_right_fails_as_the_command(
    broker: SecuredBroker,
    alice: RawClient,
    log: tuple[str, bytes],
    properties: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, _ = log
    options = ("-b", broker.bootstrap, "--command-config", properties)
    producer = wait_until(lambda: opened_transaction(alice, name), what="a transaction")
    change(alice, name, READ)
    change(alice, name, DESCRIBE, kind=TRANSACTIONAL_ID)
    by_id, by_place = f"txn abort {name}", f"txn abort --topic {name} --partition 0 --start-offset 0"
    error = denial(capsys, by_id, "--dry-run", "--yes", *options)
    assert "(TRANSACTIONAL_ID_AUTHORIZATION_FAILED)" in error
    assert "(CLUSTER_AUTHORIZATION_FAILED)" in call_kproc(capsys, *by_place.split(), "--dry-run", *options).stderr
    assert "(CLUSTER_AUTHORIZATION_FAILED)" in call_kproc(capsys, *by_place.split(), "--yes", *options).stderr
    change(alice, name, WRITE, kind=TRANSACTIONAL_ID)
    would = call_kproc(capsys, *by_id.split(), "--dry-run", *options)
    assert told(would) == (
        f"would abort the transaction of {name}, which is in state Ongoing, and fence producer {producer[0]}\n"
    )
    assert would.stderr == ""
    change(alice, "kafka-cluster", ALTER, kind=CLUSTER)
    assert told(call_kproc(capsys, *by_place.split(), "--dry-run", *options)).startswith("would abort")
    change(alice, "kafka-cluster", ALTER, removes=True, kind=CLUSTER)
    # The dry runs have fenced nobody.
    ended = alice.call(ApiKey.END_TXN, 3, {"transactional_id": name, "producer_id": producer[0],
                                           "producer_epoch": producer[1], "committed": True})  # fmt: skip
    assert ended["error_code"] == 0
    # A later test is about a user who sees no transactional id.
    change(alice, name, DESCRIBE, WRITE, removes=True, kind=TRANSACTIONAL_ID)


def opened_transaction(alice: RawClient, name: str) -> tuple[int, int] | None:
    """Open a transaction with a record in partition 0. Return its producer, or None while no coordinator is there."""
    alice.call(ApiKey.FIND_COORDINATOR, 3, {"key": name, "key_type": 1})
    started = alice.call(
        ApiKey.INIT_PRODUCER_ID,
        3,
        {"transactional_id": name, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1},
    )
    if started["error_code"]:
        return None
    producer = started["producer_id"], started["producer_epoch"]
    added = alice.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, {
        "v3_and_below_transactional_id": name, "v3_and_below_producer_id": producer[0],
        "v3_and_below_producer_epoch": producer[1], "v3_and_below_topics": [{"name": name, "partitions": [0]}],
    })  # fmt: skip
    assert added["results_by_topic_v3_and_below"][0]["results_by_partition"][0]["partition_error_code"] == 0
    records = batch(
        b"x", producer_id=producer[0], producer_epoch=producer[1], base_sequence=0, flags=TRANSACTIONAL
    )
    fields = {**produce_fields([(name, NO_TOPIC_ID, [(0, records)])]), "transactional_id": name}
    [row] = alice.call(ApiKey.PRODUCE, 9, fields)["responses"][0]["partition_responses"]
    assert row["error_code"] == 0
    return producer


def test_empty_list_of_a_user_names_rights_as_a_reason(
    broker: SecuredBroker, properties: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("-b", broker.bootstrap, "--command-config", properties)
    done = call_kproc(capsys, "txn", "list", *options)
    assert done.returncode == 0
    assert done.stderr == (
        "kproc: no transactional ids are visible to this user: there are none, or the right DESCRIBE is missing\n"
    )
