"""The fuzzer in small: `python -m tests.fuzz` sends as many requests as you like."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kproc.client import Client
from kproc.client.faults import Faults
from kproc.wire import codec
from kproc.wire.header import ApiKey, parse_request_header
from tests.fuzz.attack import DENIED_SETTINGS, FULL_SETTINGS, SETTINGS, Attack, Found
from tests.fuzz.frames import FrameMaker
from tests.support.acls import ANY_ACL
from tests.support.broker import ServedBroker
from tests.support.raw import address_of

ROUNDS_MAX = 5
TOPIC_IDS = {"one": b"1" * 16, "other": b"2" * 16}


@pytest.mark.long
def test_fuzz_frames_are_reproducible_and_mostly_decodable() -> None:
    served = {
        int(key): codec.supported_versions(int(key)) for key in (ApiKey.METADATA, ApiKey.FETCH, ApiKey.JOIN_GROUP)
    }
    one, other = (FrameMaker(random.Random(7), TOPIC_IDS, served) for _ in range(2))
    readable = 0
    for number in range(120):
        key, frame = one.frame(number)
        assert (key, frame) == other.frame(number)
        if one.is_rough:
            continue
        header, at = parse_request_header(memoryview(frame)[4:])
        assert (header.api_key, header.correlation_id) == (key, number)
        readable += bool(codec.decode_request(key, header.api_version, frame[4 + at :]))
    assert readable > 100


@pytest.mark.faults
def test_fuzz_requests_of_all_apis_change_nothing(tmp_path: Path) -> None:
    """A process that is missing at the end is noticed."""
    with ServedBroker(tmp_path / "data", settings=SETTINGS) as broker:
        attack = Attack(broker, 20_240)
        try:
            attack.run(600, lines=40, frames_each=15)
            attack.pids = attack.pids[1:]
            with pytest.raises(Found, match="processes were"):
                attack.check()
        finally:
            attack.close()
        assert len(attack.answered) > 40


@pytest.mark.faults
def test_fuzz_requests_pass_through_fault_rules(tmp_path: Path) -> None:
    """Every request is decoded for the rules, and many are delayed or have their answers held."""
    with ServedBroker(tmp_path / "data", settings={**SETTINGS, "kproc.faults.enable": True}) as broker:
        faults = Faults(lambda: Client.connect(*address_of(broker.bootstrap)))
        attack = Attack(broker, 20_244)
        rules = [
            faults.close(topic="no-such-topic", group="no-such-group", transactional_id="no-such-id"),
            faults.delay_answer(ms=1, every=3),
            faults.delay(ms=1, every=3),
            faults.fail("Fetch", topic="coded", error="NOT_LEADER_OR_FOLLOWER"),
        ]
        try:
            attack.run(600, lines=40, frames_each=15)
            assert all(rule.hits > 50 for rule in rules[1:3])
        finally:
            attack.close()
            faults.release()


@pytest.mark.faults
def test_produced_batches_that_are_accepted_can_be_read(tmp_path: Path) -> None:
    """Hostile batches at a broker that checks every record; what it stores, kafka-python's decoder reads."""
    with ServedBroker(tmp_path / "data", settings=FULL_SETTINGS) as broker:
        attack = Attack(broker, 20_243, only=ApiKey.PRODUCE, is_full=True)
        try:
            # How many batches one round reads depends on the topics that its requests delete: 33 to 122 were seen.
            for _ in range(ROUNDS_MAX):
                attack.run(attack.sent + 600, lines=40, frames_each=15)
                if attack.read_back > 50:
                    break
        finally:
            attack.close()
        assert attack.read_back > 50


@pytest.mark.faults
def test_fuzz_requests_without_rights_change_nothing(tmp_path: Path) -> None:
    with ServedBroker(tmp_path / "data", settings=DENIED_SETTINGS) as broker:
        attack = Attack(broker, 20_241, is_denied=True)
        try:
            attack.run(600, lines=40, frames_each=15)
            attack.healthy.call(ApiKey.DELETE_ACLS, 3, {"filters": [ANY_ACL]})
            with pytest.raises(Found, match="somebody without rights changed rules"):
                attack.check()
        finally:
            attack.close()
        assert len(attack.answered) > 40
