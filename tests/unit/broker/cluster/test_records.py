"""`kproc dump-log` of the metadata log shows no password, nor anything to try passwords against."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import msgspec
import pytest

from kproc.broker.cluster import records as r
from kproc.broker.cluster.records import without_secrets
from kproc.broker.storage.format import METADATA_DIRECTORY
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support.cases import in_one_test
from tests.support.command_line import call_kproc

MARK = "mark-Zq81"
LISTENER = "listener.name.out"
SECRETS = [
    r.BrokerConfigSet("1", "ssl.keystore.password", MARK),
    r.BrokerConfigSet("1", f"{LISTENER}.ssl.key.password", MARK),
    r.BrokerConfigSet("1", f"{LISTENER}.plain.sasl.jaas.config", MARK),
    r.BrokerConfigSet("1", "of.a.later.version", MARK),
    r.ScramSecretMade(MARK.encode()),
    r.ScramCredentialSet("alice", 1, MARK.encode(), MARK.encode(), MARK.encode(), 4096),
]

# BrokerConfigSet("\xff", "n", "v"): msgspec raises UnicodeDecodeError, which is no MsgspecError.
NOT_UTF8 = b"\x94\x08\xa1\xff\xa1n\xa1v"


@in_one_test("record", SECRETS)
def test_secrets_are_replaced_and_the_rest_stays(record: r.Record) -> None:
    shown = r.decode_record(without_secrets(r.encode_record(record)))
    assert MARK not in repr(shown)
    assert type(shown) is type(record)
    for field in ("name", "node", "mechanism", "iterations"):
        assert getattr(shown, field, None) == getattr(record, field, None)


@pytest.mark.parametrize(
    "data",
    [
        r.encode_record(r.BrokerConfigSet("1", "num.network.threads", "3")),
        r.encode_record(r.BrokerConfigSet("1", "ssl.keystore.password", None)),
        r.encode_record(r.TopicCreated("t", bytes(16))),
        b"no record at all",
        NOT_UTF8,
    ],
)
def test_metadata_record_without_secret_is_unchanged(data: bytes) -> None:
    assert without_secrets(data) == data


def test_record_with_text_that_is_not_utf8_is_invalid() -> None:
    assert "can't decode byte 0xff" in str(r.record_error(NOT_UTF8))
    assert r.record_error(NOT_UTF8.replace(b"\xff", b"1")) is None
    with pytest.raises(msgspec.DecodeError, match="can't decode byte 0xff"):
        r.decode_delta(b"\x93\x00\x01\x91" + NOT_UTF8)


@pytest.mark.parametrize("is_kafka", [False, True])
def test_verify_reports_metadata_records_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_kafka: bool
) -> None:
    """The CRC of such a batch is right. Kafka's metadata log has the same name and other records."""
    directory = tmp_path / METADATA_DIRECTORY
    directory.mkdir()
    rows = [Record(None, r.encode_record(SECRETS[0]), 1), Record(None, NOT_UTF8, 1)]
    (directory / f"{0:020d}.log").write_bytes(encode_batch(rows, base_offset=0, leader_epoch=0))
    if is_kafka:
        (directory / "quorum-state").write_text("{}")
    done = call_kproc(capsys, "dump-log", "--verify", str(tmp_path))
    assert done.returncode == (0 if is_kafka else 1)
    assert ("cannot decode the record at offset 1: " in done.stdout) != is_kafka


def test_dump_of_directory_hides_secrets_and_skips_request_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "requests-handler-0.log").write_text("{}\n")
    directory = tmp_path / METADATA_DIRECTORY
    directory.mkdir()
    rows = [Record(None, r.encode_record(record), 1) for record in SECRETS]
    (directory / f"{0:020d}.log").write_bytes(encode_batch(rows, base_offset=0, leader_epoch=0))
    done = call_kproc(capsys, "dump-log", "--records", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    values = [base64.b64decode(text) for text in re.findall(r"'base64': '([^']+)'", done.stdout)]
    assert len(values) == len(SECRETS)
    assert b"ssl.keystore.password" in values[0]
    assert not [value for value in values if MARK.encode() in value]
