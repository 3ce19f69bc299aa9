"""The tools of tests/conformance: how an outcome is read, and what counts as a surprise."""

from __future__ import annotations

import argparse
import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.security.sasl.bearer import BadToken
from kproc.broker.security.sasl.key_set import KeySet
from kproc.broker.security.sasl.signed_tokens import ExpectedClaims, SignedValidator
from tests.conformance import brokers, kafka_python, librdkafka, outcomes
from tests.conformance.librdkafka import SuiteTest
from tests.conformance.outcomes import FAILS, PASSES, SKIPS, Expectation, Outcome
from tests.conformance.tokens import TokenServer

PASSED = """
\x1b[32m================= Test 0001_multiobj PASSED =================\x1b[0m
TEST 20261121 (bare, scenario default) SUMMARY
#==================================================================#
|\x1b[32m <MAIN>                                   |     PASSED |   1.201s \x1b[0m|
|\x1b[32m 0001_multiobj                            |     PASSED |   1.058s \x1b[0m|
"""
SKIPPED = "|\x1b[36m 0097_ssl_verify        |    SKIPPED |   0.000s \x1b[0m|\x1b[36m Test requires SSL support\x1b[0m\n"
ABORTED = """\
[0m\x1b[31m### Test "0115_producer_auth" failed at test.c:4543:test_kafka_cmd() at Sat Nov 21: ###
system("kafka-acls.sh") failed with exit status 1
[36m[<MAIN>                      / 17.736s] TEST FAILURE
\x1b[31m### Test "<MAIN>" failed at test.c:1596:test_wait_exit() at Sat Nov 21: ###
6 thread(s) still active in librdkafka
test-runner: test.c:6716: test_fail0: Assertion `0' failed.
""".replace("[0m\x1b", "\x1b[0m\x1b")
LIST = """
passes = ["one"]

[others."two[x]"]
kproc = "fails"
kafka = "passes"
reason = "transactions"
"""


@pytest.mark.parametrize(
    ("name", "written", "outcome"),
    [
        ("0001_multiobj", PASSED, (PASSES, "")),
        ("0097_ssl_verify", SKIPPED, (SKIPS, "Test requires SSL support")),
        ("0115_producer_auth", ABORTED, (FAILS, 'system("kafka-acls.sh") failed with exit status 1')),
        # Another test's row says nothing of this one.
        ("0002_unkpart", PASSED, (FAILS, "ended without a result")),
    ],
)
def test_conformance_parses_librdkafka_runner_output(name: str, written: str, outcome: tuple[str, str]) -> None:
    assert librdkafka.outcome_of(name, written) == outcome


def test_conformance_part_passes_only_if_it_ran() -> None:
    part = "[ do_test_DeleteGroups:2259: producer-2: PASS (0.37s) ]\n"
    skipped = "[ o_java_interop:2009: SKIP: no Java ]\n"
    assert librdkafka.outcome_of("0001_multiobj", part + PASSED, "DeleteGroups") == (PASSES, "")
    assert librdkafka.outcome_of("0001_multiobj", skipped + PASSED, "o_java_interop") == (SKIPS, "no Java")
    assert librdkafka.outcome_of("0001_multiobj", part + PASSED, "CreateAcls")[0] == FAILS


def test_conformance_parses_pytest_output(tmp_path: Path) -> None:
    """A failure stays one when the teardown of the test fails, too, and comes as a row of its own."""
    path = tmp_path / "results.xml"
    case = '<testcase classname="test.integration.test_a" name="{}" time="1.5">{}</testcase>'
    rows = [
        case.format("test_one", ""),
        case.format("test_two[x]", '<failure message="AssertionError: no&#10;more">trace</failure>'),
        case.format("test_two[x]", '<error message="teardown"/>'),
        case.format("test_three", '<skipped message="Requires KAFKA_VERSION"/>'),
    ]
    path.write_text(f"<testsuites><testsuite>{''.join(rows)}</testsuite></testsuites>")
    assert kafka_python.read_results(path) == [
        Outcome("test_a::test_one", PASSES, 1.5),
        Outcome("test_a::test_two[x]", FAILS, 1.5, "AssertionError: no"),
        Outcome("test_a::test_three", SKIPS, 1.5, "Requires KAFKA_VERSION"),
    ]


def test_expectations_are_read(tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text(LIST)
    expected = outcomes.load(path)
    assert expected == {"one": Expectation(), "two[x]": Expectation(FAILS, PASSES, "transactions")}
    assert outcomes.in_words(expected)[2:4] == ["| kproc | 1 | 1 | 0 |", "| Apache Kafka 4.3 | 2 | 0 | 0 |"]
    assert outcomes.in_words(expected)[-1] == "| `two[x]` | fails | passes | transactions |"


@pytest.mark.parametrize(
    "change",
    [('"one"', '"two[x]"'), ('"fails"', '"sometimes"'), ('reason = "transactions"', 'reason = ""')],
    ids=["twice", "unknown state", "no reason"],
)
def test_wrong_expectations_are_refused(tmp_path: Path, change: tuple[str, str]) -> None:
    path = tmp_path / "list.toml"
    path.write_text(LIST.replace(*change))
    with pytest.raises(outcomes.WrongExpectations):
        outcomes.load(path)


def test_conformance_surprises_are_unexpected_outcomes() -> None:
    expected = {"one": Expectation(), "two": Expectation(FAILS, PASSES, "transactions")}
    as_said = [Outcome("one", PASSES, 0.1), Outcome("two", FAILS, 0.1)]
    assert outcomes.surprises(as_said, expected, kafka=False) == []
    assert len(outcomes.surprises(as_said, expected, kafka=True)) == 1
    for outcome in (Outcome("one", FAILS, 0.1), Outcome("two", PASSES, 0.1), Outcome("three", PASSES, 0.1)):
        assert len(outcomes.surprises([outcome], expected, kafka=False)) == 1


def test_conformance_summary_tells_if_all_ended_as_expected() -> None:
    said: list[str] = []
    expected = {"one": Expectation()}
    assert outcomes.conclude([Outcome("one", PASSES, 0.1)], expected, kafka=False, say=said.append) == 0
    assert said == ["1 passes, 0 fails, 0 skips", "all as expected"]
    assert outcomes.conclude([Outcome("one", FAILS, 0.1)], expected, kafka=False, say=said.append) == 1


def test_conformance_suite_runs_as_for_emulated_release() -> None:
    parser = argparse.ArgumentParser()
    brokers.add_options(parser)
    assert brokers.kafka_version(parser.parse_args(["--emulate", "2.8"]), "4.3.0") == "2.8.0"
    assert brokers.kafka_version(parser.parse_args([]), "4.3.0") == "4.3.0"


def test_librdkafka_tls_and_sasl_tests_are_named_by_access() -> None:
    known = {test.name for test in librdkafka.by_each_access(SuiteTest("0115_producer_auth", "default"))}
    assert known == {"0115_producer_auth", "0115_producer_auth@SSL", "0115_producer_auth@SASL_SSL"}
    part = SuiteTest("0081_admin", "default", "CreateAcls")
    assert "0081_admin:CreateAcls@SSL" in {test.name for test in librdkafka.by_each_access(part)}
    (tokens,) = librdkafka.by_each_access(SuiteTest("0126_oauthbearer_oidc", "default"))
    assert tokens.name == "0126_oauthbearer_oidc@OIDC"
    plaintext = SuiteTest("0001_multiobj", "default")
    assert librdkafka.by_each_access(plaintext) == [plaintext]


def test_token_server_expired_and_foreign_tokens_are_rejected() -> None:
    with TokenServer() as server:
        tokens = {kind: _served(server.url(kind)) for kind in ("valid", "expired", "stranger")}
        keys = KeySet(server.url("keys"), 3_600_000, _now_ms, run=lambda work: work())
        validator = SignedValidator(keys, ExpectedClaims((), None, 0, "sub"), _now_ms)
        assert validator(tokens["valid"]["access_token"]).name == "alice"
        for kind in ("expired", "stranger"):
            with pytest.raises(BadToken):
                validator(tokens[kind]["access_token"])


def _served(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, data=b"grant_type=client_credentials") as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _now_ms() -> int:
    return int(time.time() * 1000)
