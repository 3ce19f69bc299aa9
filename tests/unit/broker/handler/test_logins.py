"""Logins in a Handler: answers to a gated connection, when it is admitted, and when it is closed."""

from __future__ import annotations

import base64
import itertools
import json
import logging
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey

from kproc.broker.cluster import records as r
from kproc.broker.security.principal import Principal
from kproc.broker.security.sasl.scram import KINDS, SCRAM_SHA_256, new_credential
from kproc.broker.security.session import Session
from kproc.broker.transport.envelope import CLOSE, DISCONNECTED, FLAG_LOGIN, FLAG_MOVED, HEAD, NO_OP, SEND
from kproc.common.errors import ErrorCode
from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.handler_logins import (
    AUTHENTICATE,
    GENERAL,
    HANDSHAKE,
    SETTINGS,
    WORD,
    Start,
    gated,
    refused,
    shake,
    start,
)
from tests.support.handler_rig import Answer, HandlerRig, parts_of
from tests.support.raw import batch
from tests.support.scram_client import ScramClient
from tests.support.secured import unsecured_token
from tests.support.wait import wait_until

__all__ = ["start"]  # The fixture.

ALICE = Principal("User", "alice")
UNSECURED = 'some.OAuthBearerLoginModule required unsecuredValidatorPrincipalClaimName="sub";'
GOOD = f"\0alice\0{WORD}".encode()
BAD = b"\0alice\0wrong-word"


def is_closed_silently(answer: Answer) -> bool:
    return answer.kind == CLOSE and answer.frame == b""


@pytest.mark.parametrize("version", [0, 1, 2])
def test_plain_lets_a_client_in(start: Start, version: int) -> None:
    rig = start()
    assert gated(rig, ApiKey.API_VERSIONS, 0).kind == SEND
    shake(rig)
    answer = gated(rig, AUTHENTICATE, version, auth_bytes=GOOD)
    assert answer.kind == SEND
    fields = answer.fields(AUTHENTICATE, version)
    assert (fields["error_code"], fields["error_message"], fields["auth_bytes"]) == (0, "", b"")
    assert rig.processors[0].sessions == {1: Session(ALICE, "PLAIN")}


def test_bare_tokens_let_a_client_in(start: Start) -> None:
    rig = start()
    shake(rig, version=0)
    rig.processors[0].send_frames([struct.pack(">i", len(GOOD)) + GOOD], flags=FLAG_LOGIN)
    (answer,) = rig.processors[0].answers()
    assert (answer.kind, answer.frame) == (SEND, bytes(4))
    assert rig.processors[0].sessions == {1: Session(ALICE, "PLAIN")}


def test_a_wrong_bare_token_is_answered_by_the_end(start: Start) -> None:
    rig = start()
    shake(rig, version=0)
    rig.processors[0].send_frames([struct.pack(">i", len(BAD)) + BAD], flags=FLAG_LOGIN)
    rig.settle()
    rig.advance_ms(100)
    (answer,) = rig.processors[0].answers()
    assert is_closed_silently(answer)
    assert rig.processors[0].sessions == {}


def test_scram_lets_a_user_of_the_metadata_in(start: Start) -> None:
    rig = start()
    add_user(rig, "alice", WORD)
    shake(rig, SCRAM_SHA_256)
    client = ScramClient("sha256", "alice", WORD)
    first = gated(rig, AUTHENTICATE, 1, auth_bytes=client.first()).fields(AUTHENTICATE, 1)
    assert rig.processors[0].sessions == {}
    last = gated(rig, AUTHENTICATE, 1, auth_bytes=client.final(first["auth_bytes"])).fields(AUTHENTICATE, 1)
    assert client.is_server(last["auth_bytes"])
    assert rig.processors[0].sessions == {1: Session(ALICE, SCRAM_SHA_256)}


def add_user(rig: HandlerRig, name: str, password: str) -> None:
    rig.cluster.do(
        "alter_user_scram_credentials",
        deletions=[],
        upsertions=[
            {"name": name, "mechanism": 1, **new_credential(KINDS[SCRAM_SHA_256], password)._asdict()}
        ],
    )
    rig.tell()


@pytest.mark.parametrize("name", ["alice", "nobody"])
def test_a_wrong_password_and_an_unknown_user_look_alike(start: Start, name: str) -> None:
    rig = start()
    add_user(rig, "alice", WORD)
    shake(rig, SCRAM_SHA_256)
    client = ScramClient("sha256", name, "wrong-word")
    first = gated(rig, AUTHENTICATE, 1, auth_bytes=client.first()).fields(AUTHENTICATE, 1)
    assert first["error_code"] == 0
    answer = gated(rig, AUTHENTICATE, 1, auth_bytes=client.final(first["auth_bytes"]))
    assert refused(answer, AUTHENTICATE, 1) == (
        ErrorCode.SASL_AUTHENTICATION_FAILED, GENERAL + SCRAM_SHA_256,
    )  # fmt: skip
    assert rig.processors[0].sessions == {}


def test_unknown_mechanism_is_answered_with_offered_ones(start: Start) -> None:
    rig = start()
    answer = gated(rig, HANDSHAKE, 1, mechanism="GSSAPI")
    assert answer.kind == CLOSE
    assert answer.fields(HANDSHAKE, 1) == {
        "error_code": ErrorCode.UNSUPPORTED_SASL_MECHANISM, "mechanisms": ["PLAIN", "SCRAM-SHA-256"],
    }  # fmt: skip


def test_login_failure_is_delayed_and_logged_without_secret(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    rig = start(connection_failed_authentication_delay_ms=300)
    shake(rig)
    rig.processors[0].send(AUTHENTICATE, 1, {"auth_bytes": BAD}, flags=FLAG_LOGIN)
    with caplog.at_level(logging.INFO):
        assert rig.processors[0].answers() == []
        rig.advance_ms(299)
        assert rig.processors[0].answers() == []
        rig.advance_ms(1)
    (answer,) = rig.processors[0].answers()
    assert refused(answer, AUTHENTICATE, 1) == (
        ErrorCode.SASL_AUTHENTICATION_FAILED, "Authentication failed: Invalid username or password",
    )  # fmt: skip
    (line,) = [each.message for each in caplog.records if "login failed" in each.message]
    assert "host=10.0.0.7 listener=SASL_PLAINTEXT mechanism=PLAIN" in line
    assert "word" not in line.replace("password", "")


def test_other_clients_are_served_while_a_failure_waits(start: Start) -> None:
    rig = start(connection_failed_authentication_delay_ms=300)
    shake(rig)
    rig.processors[0].send(AUTHENTICATE, 1, {"auth_bytes": BAD}, flags=FLAG_LOGIN)
    rig.processors[0].introduce("10.0.0.8", connection=2)
    assert "error_code" in rig.processors[0].ask(ApiKey.API_VERSIONS, 0, {}, connection=2)


def test_disconnect_during_delayed_login_failure_frees_request(start: Start) -> None:
    rig = start()
    shake(rig)
    rig.processors[0].send(AUTHENTICATE, 1, {"auth_bytes": BAD}, flags=FLAG_LOGIN)
    assert rig.processors[0].answers() == []
    rig.processors[0].disconnect()
    rig.settle()
    rig.advance_ms(100)
    (answer,) = rig.processors[0].answers()
    assert answer.kind == NO_OP


def test_the_log_holds_some_lines_a_second(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    rig = start(connection_failed_authentication_delay_ms=0)
    with caplog.at_level(logging.INFO):
        for connection in range(2, 60):
            rig.processors[0].send(
                HANDSHAKE, 1, {"mechanism": "x" * 500 + "\n"}, connection=connection, flags=FLAG_LOGIN
            )
        assert len(rig.processors[0].answers()) == 58
        rig.advance_ms(1_000)
        rig.processors[0].send(HANDSHAKE, 1, {"mechanism": "GSSAPI"}, connection=60, flags=FLAG_LOGIN)
        rig.settle()
    lines = [each.message for each in caplog.records if "login" in each.message]
    assert len(lines) == 12
    assert lines[-2] == "48 more logins failed meanwhile"
    assert all(len(line) < 200 for line in lines)


WRONG_ORDERS: dict[str, list[tuple[ApiKey, int, dict[str, object]]]] = {
    "a token first": [(AUTHENTICATE, 1, {"auth_bytes": GOOD})],
    "another API first": [(ApiKey.METADATA, 1, {"topics": None})],
    "ApiVersions twice": [(ApiKey.API_VERSIONS, 0, {})] * 2,
    "two handshakes": [(HANDSHAKE, 1, {"mechanism": "PLAIN"})] * 2,
    "ApiVersions behind the handshake": [
        (HANDSHAKE, 1, {"mechanism": "PLAIN"}), (ApiKey.API_VERSIONS, 0, {}),
    ],
    "another API behind the handshake": [
        (HANDSHAKE, 1, {"mechanism": "PLAIN"}), (ApiKey.METADATA, 1, {"topics": None}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("requests", WRONG_ORDERS.values(), ids=WRONG_ORDERS)
def test_a_request_out_of_order_ends_the_login(
    start: Start, requests: list[tuple[ApiKey, int, dict[str, object]]]
) -> None:
    rig = start()
    for key, version, fields in requests[:-1]:
        assert gated(rig, key, version, **fields).kind == SEND
    key, version, fields = requests[-1]
    assert gated(rig, key, version, **fields).kind == CLOSE
    assert rig.processors[0].sessions == {}
    # And the login does not go on behind that.
    assert gated(rig, AUTHENTICATE, 1, auth_bytes=GOOD).kind == CLOSE
    assert rig.processors[0].sessions == {}


@pytest.mark.parametrize(
    "frame",
    [b"", b"\x16\x03\x01\x02", bytes(10), struct.pack(">hhih", 17, 1, 7, 999), struct.pack(">hhih", 17, 9, 7, -1),
     struct.pack(">hhih", 17, 1, 7, -1) + b"\x00", struct.pack(">hhih", 36, 2, 7, -1),
     struct.pack(">hhih", 17, 1, 7, -1) + b"\xff\xff", b"GET / HTTP/1.1\r\n\r\n"],
)  # fmt: skip
def test_bytes_that_are_no_login_end_it(start: Start, frame: bytes) -> None:
    rig = start()
    rig.processors[0].send_frames([struct.pack(">i", len(frame)) + frame], flags=FLAG_LOGIN)
    rig.settle()
    rig.advance_ms(100)
    (answer,) = rig.processors[0].answers()
    assert is_closed_silently(answer)
    assert rig.handler().containment.count == 0


def test_an_unknown_version_of_api_versions_may_be_asked_again(start: Start) -> None:
    rig = start()
    frame = struct.pack(">hhih", 18, 99, 7, -1)
    rig.processors[0].send_frames([struct.pack(">i", len(frame)) + frame], flags=FLAG_LOGIN)
    (answer,) = rig.processors[0].answers()
    assert answer.fields(ApiKey.API_VERSIONS, 0)["error_code"] == ErrorCode.UNSUPPORTED_VERSION
    assert (
        gated(rig, ApiKey.API_VERSIONS, 3, client_software_name="x", client_software_version="1").kind == SEND
    )
    shake(rig)


def test_invalid_software_name_allows_another_api_versions(start: Start) -> None:
    rig = start()
    wrong = gated(rig, ApiKey.API_VERSIONS, 3, client_software_name="a b", client_software_version="1")
    assert wrong.fields(ApiKey.API_VERSIONS, 3)["error_code"] == ErrorCode.INVALID_REQUEST
    right = gated(rig, ApiKey.API_VERSIONS, 3, client_software_name="a", client_software_version="1")
    assert right.fields(ApiKey.API_VERSIONS, 3)["error_code"] == ErrorCode.NONE
    shake(rig)


def test_api_versions_before_login_accepts_another_broker(start: Start) -> None:
    """SaslServerAuthenticator of Kafka does not compare them. The client sends ApiVersions again after the login."""
    software = {"client_software_name": "a", "client_software_version": "1"}
    rig = start()
    half = gated(rig, ApiKey.API_VERSIONS, 5, **software, cluster_id="another")
    assert half.fields(ApiKey.API_VERSIONS, 5)["error_code"] == ErrorCode.INVALID_REQUEST
    other = gated(rig, ApiKey.API_VERSIONS, 5, **software, cluster_id="another", node_id=7)
    assert other.fields(ApiKey.API_VERSIONS, 5)["error_code"] == ErrorCode.NONE
    shake(rig)


@pytest.mark.parametrize(
    ("key", "fields"),
    [(HANDSHAKE, {"mechanism": "PLAIN"}), (ApiKey.API_VERSIONS, {})],
    ids=["handshake", "versions"],
)
def test_token_step_out_of_turn_is_answered_like_kafka(
    start: Start, key: ApiKey, fields: dict[str, object]
) -> None:
    rig = start()
    shake(rig)
    answer = gated(rig, key, 1, **fields)
    assert answer.kind == CLOSE
    assert answer.fields(key, 1)["error_code"] == ErrorCode.ILLEGAL_SASL_STATE


def test_a_token_before_the_handshake_is_not_answered(start: Start) -> None:
    assert is_closed_silently(gated(start(), AUTHENTICATE, 1, auth_bytes=GOOD))


def test_handler_without_login_state_rejects_frames(start: Start) -> None:
    """Whatever a router or a change of homes may do: the flag decides, and no login goes on at another Handler."""
    rig = start(handlers=2)
    shake(rig)
    rig.processors[1].send(AUTHENTICATE, 1, {"auth_bytes": GOOD}, flags=FLAG_LOGIN)
    rig.processors[1].send(ApiKey.METADATA, 1, {"topics": None}, connection=2, flags=FLAG_LOGIN)
    rig.settle()
    rig.advance_ms(100)
    answers = rig.processors[1].answers()
    assert [each.kind for each in answers] == [CLOSE, CLOSE]
    assert all(not each.frame or each.fields(AUTHENTICATE, 1)["error_code"] for each in answers)
    assert rig.processors[1].sessions == {}


# -- sessions with an end ----------------------------------------------------------------------------------------


def test_the_answer_says_how_long_a_session_lasts(start: Start) -> None:
    rig = start(connections_max_reauth_ms=60_000)
    shake(rig)
    fields = gated(rig, AUTHENTICATE, 1, auth_bytes=GOOD).fields(AUTHENTICATE, 1)
    assert fields["session_lifetime"] == 60_000
    ends_ns = rig.clock.now_ns() + 60_000_000_000
    assert rig.processors[0].sessions == {1: Session(ALICE, "PLAIN", ends_ns)}


def test_session_longer_than_clock_range_is_accepted(start: Start) -> None:
    longest = (1 << 63) - 1
    rig = start(
        connections_max_reauth_ms=longest,
        sasl_enabled_mechanisms="PLAIN,OAUTHBEARER",
        sasl_jaas_config=UNSECURED,
    )
    assert gated(rig, HANDSHAKE, 1, mechanism="PLAIN").kind == SEND
    fields = gated(rig, AUTHENTICATE, 1, auth_bytes=GOOD).fields(AUTHENTICATE, 1)
    assert fields["session_lifetime"] == longest
    rig.processors[0].introduce("10.0.0.8", connection=2)
    rig.processors[0].send(HANDSHAKE, 1, {"mechanism": "OAUTHBEARER"}, connection=2, flags=FLAG_LOGIN)
    assert [each.kind for each in rig.processors[0].answers()] == [SEND]
    token = bearer(unsecured_token(iat=0, exp=99_999_999_999))  # Until the year 5138.
    rig.processors[0].send(AUTHENTICATE, 1, {"auth_bytes": token}, connection=2, flags=FLAG_LOGIN)
    (answer,) = rig.processors[0].answers()
    assert answer.fields(AUTHENTICATE, 1)["error_code"] == 0
    assert [rig.processors[0].sessions[each].ends_ns for each in (1, 2)] == [longest, longest]


def prolonging(rig: HandlerRig, *, flags: int, principal: Principal = ALICE) -> None:
    """A client whose session has an end, or is over, if the flags say so."""
    rig.processors[0].introduce("10.0.0.7", principal=principal, mechanism="PLAIN", ends_ns=5)
    rig.processors[0].send(HANDSHAKE, 1, {"mechanism": "PLAIN"}, flags=flags)
    (answer,) = rig.processors[0].answers()
    assert answer.fields(HANDSHAKE, 1)["error_code"] == 0


@pytest.mark.parametrize("flags", [0, FLAG_LOGIN], ids=["in time", "late"])
def test_a_session_is_prolonged(start: Start, flags: int) -> None:
    rig = start(connections_max_reauth_ms=60_000)
    prolonging(rig, flags=flags)
    rig.processors[0].send(AUTHENTICATE, 1, {"auth_bytes": GOOD}, flags=flags)
    (answer,) = rig.processors[0].answers()
    assert answer.fields(AUTHENTICATE, 1)["error_code"] == 0
    assert rig.processors[0].sessions[1].principal == ALICE


def test_session_is_prolonged_while_its_connection_migrates(start: Start) -> None:
    """The connection moves to another Processor between the two requests of the login."""
    rig = start(connections_max_reauth_ms=60_000)
    prolonging(rig, flags=0)
    processor = rig.processors[0]
    processor.outbox.push(DISCONNECTED, HEAD.pack(1, 0, 0, FLAG_MOVED))
    processor.introduce("10.0.0.7", principal=ALICE, mechanism="PLAIN", ends_ns=5)
    processor.send(AUTHENTICATE, 1, {"auth_bytes": GOOD})
    (answer,) = processor.answers()
    assert answer.fields(AUTHENTICATE, 1)["error_code"] == 0
    processor.disconnect()
    rig.settle()
    assert not parts_of(rig.handler()).requests.logins._open


@pytest.mark.parametrize("flags", [0, FLAG_LOGIN], ids=["in time", "late"])
def test_reauthentication_as_another_user_is_rejected(start: Start, flags: int) -> None:
    rig = start(connections_max_reauth_ms=60_000)
    prolonging(rig, flags=flags)
    rig.processors[0].send(AUTHENTICATE, 1, {"auth_bytes": b"\0bob\0bobs-word"}, flags=flags)
    rig.settle()
    rig.advance_ms(100)
    (answer,) = rig.processors[0].answers()
    assert refused(answer, AUTHENTICATE, 1) == (
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        "Cannot change principals during re-authentication from User.alice: User.bob",
    )
    assert rig.processors[0].sessions == {}


@pytest.mark.parametrize("flags", [0, FLAG_LOGIN], ids=["in time", "late"])
def test_reauthentication_by_another_mechanism_is_rejected(start: Start, flags: int) -> None:
    rig = start(connections_max_reauth_ms=60_000)
    rig.processors[0].introduce("10.0.0.7", principal=ALICE, mechanism=SCRAM_SHA_256, ends_ns=5)
    rig.processors[0].send(HANDSHAKE, 1, {"mechanism": "PLAIN"}, flags=flags)
    rig.processors[0].send(AUTHENTICATE, 1, {"auth_bytes": GOOD}, flags=flags)
    rig.settle()
    rig.advance_ms(100)
    answer = rig.processors[0].answers()[-1]
    code, text = refused(answer, AUTHENTICATE, 1)
    assert code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert text is not None
    assert "not supported for re-authentication" in text
    assert rig.processors[0].sessions == {}


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        (ApiKey.METADATA, {"topics": []}),
        (ApiKey.API_VERSIONS, {}),
        (AUTHENTICATE, {"auth_bytes": GOOD}),
    ],
)
def test_a_request_after_the_session_closes_the_connection(
    start: Start, key: ApiKey, fields: dict[str, object]
) -> None:
    rig = start(connections_max_reauth_ms=60_000)
    rig.processors[0].introduce("10.0.0.7", principal=ALICE, mechanism="PLAIN", ends_ns=5)
    rig.processors[0].send(key, 0, fields, flags=FLAG_LOGIN)
    (answer,) = rig.processors[0].answers()  # At once.
    assert is_closed_silently(answer)


def test_reauthentication_begun_at_other_handler_disconnects(
    start: Start,
) -> None:
    """Clients try again after the end of a connection; ILLEGAL_SASL_STATE would be final for them."""
    rig = start(connections_max_reauth_ms=60_000)
    rig.processors[0].introduce("10.0.0.7", principal=ALICE, mechanism="PLAIN", ends_ns=5)
    rig.processors[0].send(AUTHENTICATE, 1, {"auth_bytes": GOOD})
    (answer,) = rig.processors[0].answers()
    assert is_closed_silently(answer)


def test_a_session_is_prolonged_once_a_second_at_most(start: Start) -> None:
    rig = start(connections_max_reauth_ms=60_000)
    prolonging(rig, flags=0)

    def again() -> ErrorCode:
        rig.processors[0].send(HANDSHAKE, 1, {"mechanism": "PLAIN"})
        (answer,) = rig.processors[0].answers()
        return ErrorCode(answer.fields(HANDSHAKE, 1)["error_code"])

    assert again() == ErrorCode.ILLEGAL_SASL_STATE
    rig.advance_ms(999)
    assert again() == ErrorCode.ILLEGAL_SASL_STATE
    rig.advance_ms(1)
    assert again() == ErrorCode.NONE


@pytest.mark.parametrize("ends_ns", [None, 0], ids=["PLAINTEXT", "a session without an end"])
def test_a_handshake_with_nothing_to_prolong_is_out_of_place(start: Start, ends_ns: int | None) -> None:
    rig = start()
    if ends_ns is not None:
        rig.processors[0].introduce("10.0.0.7", principal=ALICE, mechanism="PLAIN", ends_ns=ends_ns)
    assert rig.processors[0].ask(HANDSHAKE, 1, {"mechanism": "PLAIN"}) == {
        "error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": [],
    }  # fmt: skip
    fields = rig.processors[0].ask(AUTHENTICATE, 1, {"auth_bytes": GOOD})
    assert fields["error_code"] == ErrorCode.ILLEGAL_SASL_STATE


def test_new_session_forgets_shapes_of_old_one(start: Start) -> None:
    """The fast path of a connection must not outlive the principal that it was learnt from."""
    rig = start()
    rig.create_topic("t")
    fields = {
        "transactional_id": None, "acks": 1, "timeout": 1000,
        "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": batch(b"x")}]}],
    }  # fmt: skip
    frame = codec.encode_request(ApiKey.PRODUCE, 9, 7, "test", fields)
    for _ in range(3):
        rig.processors[0].send_frames([frame])
        rig.processors[0].answers()
    assert rig.fast_paths()
    rig.processors[0].introduce("10.0.0.7", principal=ALICE, mechanism="PLAIN")
    rig.settle()
    assert rig.fast_paths() == {}


def test_records_of_users_are_what_the_requests_said(start: Start) -> None:
    rig = start()
    add_user(rig, "alice", WORD)
    rebuilt = list(rig.cluster.image.scram_users.records())
    assert [type(each) for each in rebuilt] == [r.ScramSecretMade, r.ScramCredentialSet]


# -- tokens ------------------------------------------------------------------------------------------------------


SIGNED_TOKENS = {
    "sasl_enabled_mechanisms": "OAUTHBEARER",
    "sasl_oauthbearer_expected_audience": "kafka",
    "sasl_oauthbearer_expected_issuer": "https://issuer",
}


def token_rig(tmp_path: Path, start: Start) -> tuple[HandlerRig, Callable[..., str]]:
    """A listener for tokens signed with one key, and who signs them."""
    key = ECKey.generate_key("P-256", {"kid": "one"})
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    rig = start(sasl_oauthbearer_jwks_endpoint_url=file.as_uri(), **SIGNED_TOKENS)

    def sign(**claims: object) -> str:
        now_s = rig.clock.wall_ms() // 1000
        named = {"aud": "kafka", "iss": "https://issuer"}
        body = {"sub": "alice", "iat": now_s, "exp": now_s + 60, **named, **claims}
        return jwt.encode({"alg": "ES256", "kid": "one"}, body, key, ["ES256"])

    answer = gated(rig, HANDSHAKE, 1, mechanism="OAUTHBEARER")
    assert answer.fields(HANDSHAKE, 1)["mechanisms"] == ["OAUTHBEARER"]
    return rig, sign


def bring(rig: HandlerRig, message: bytes) -> Answer:
    """A token's answer, once the keys have been loaded."""
    rig.processors[0].send(AUTHENTICATE, 1, {"auth_bytes": message}, flags=FLAG_LOGIN)
    answers: list[Answer] = []

    def is_answered() -> bool:
        rig.advance_ms(100)
        answers.extend(rig.processors[0].answers())
        return bool(answers)

    wait_until(is_answered, seconds=20, what="the token is answered")
    return answers[0]


def bearer(token: str) -> bytes:
    return b"n,,\1auth=Bearer " + token.encode() + b"\1\1"


def test_a_signed_token_lets_its_owner_in_until_it_expires(tmp_path: Path, start: Start) -> None:
    rig, sign = token_rig(tmp_path, start)
    fields = bring(rig, bearer(sign())).fields(AUTHENTICATE, 1)
    assert (fields["error_code"], fields["auth_bytes"]) == (0, b"")
    assert 0 < fields["session_lifetime"] <= 60_000
    session = rig.processors[0].sessions[1]
    assert session.principal == ALICE
    assert session.ends_ns > rig.clock.now_ns()


def test_unsigned_token_is_rejected_where_tokens_are_signed(tmp_path: Path, start: Start) -> None:
    rig, _ = token_rig(tmp_path, start)
    told = bring(rig, bearer(unsecured_token())).fields(AUTHENTICATE, 1)
    assert (told["error_code"], told["auth_bytes"]) == (0, b'{"status":"invalid_token"}')
    assert rig.processors[0].sessions == {}
    assert refused(bring(rig, b"\1"), AUTHENTICATE, 1) == (
        ErrorCode.SASL_AUTHENTICATION_FAILED, '{"status":"invalid_token"}',
    )  # fmt: skip
    assert rig.processors[0].sessions == {}


@pytest.mark.parametrize(
    ("name", "is_served"),
    [("x" * 32_762, True), ("x" * 32_763, False), ("\ud800", False)],
    ids=["longest", "too long", "no text"],
)
def test_a_token_of_a_name_that_no_answer_could_hold_is_refused(
    start: Start, name: str, *, is_served: bool
) -> None:
    rig = start(sasl_enabled_mechanisms="OAUTHBEARER", sasl_jaas_config=UNSECURED)
    assert gated(rig, HANDSHAKE, 1, mechanism="OAUTHBEARER").kind == SEND
    answer = gated(rig, AUTHENTICATE, 1, auth_bytes=bearer(unsecured_token(iat=0, sub=name)))
    code = answer.fields(AUTHENTICATE, 1)["error_code"]
    assert code == (ErrorCode.NONE if is_served else ErrorCode.SASL_AUTHENTICATION_FAILED)
    assert [each.principal.name for each in rig.processors[0].sessions.values()] == [name] * is_served


@pytest.mark.parametrize("claims", [{"aud": "other"}, {"iss": "https://other"}])
def test_token_for_others_is_refused(tmp_path: Path, start: Start, claims: dict[str, str]) -> None:
    rig, sign = token_rig(tmp_path, start)
    told = bring(rig, bearer(sign(**claims))).fields(AUTHENTICATE, 1)
    assert told["auth_bytes"] == b'{"status":"invalid_token"}'


def test_an_expired_token_is_refused(tmp_path: Path, start: Start) -> None:
    rig, sign = token_rig(tmp_path, start)
    told = bring(rig, bearer(sign(exp=rig.clock.wall_ms() // 1000 - 31))).fields(AUTHENTICATE, 1)
    assert told["auth_bytes"] == b'{"status":"invalid_token"}'


def test_keys_that_never_come_end_the_login(tmp_path: Path, start: Start) -> None:
    rig = start(
        sasl_oauthbearer_jwks_endpoint_url=(tmp_path / "missing").as_uri(),
        **SIGNED_TOKENS,
    )
    assert gated(rig, HANDSHAKE, 1, mechanism="OAUTHBEARER").kind == SEND
    assert bring(rig, bearer("e30.e30.e30")).fields(AUTHENTICATE, 1)[
        "auth_bytes"
    ]  # Its header is looked at first.
    rig.processors[0].introduce("10.0.0.7", connection=2)
    rig.processors[0].send(HANDSHAKE, 1, {"mechanism": "OAUTHBEARER"}, connection=2, flags=FLAG_LOGIN)
    rig.processors[0].answers()
    header = base64.urlsafe_b64encode(b'{"alg":"ES256","kid":"one"}').decode()
    rig.processors[0].send(
        AUTHENTICATE, 1, {"auth_bytes": bearer(f"{header}.e30.e30")}, connection=2, flags=FLAG_LOGIN
    )
    rig.settle()
    for _ in range(99):
        rig.advance_ms(100)
        assert rig.processors[0].answers() == []
    rig.advance_ms(200)
    (answer,) = rig.processors[0].answers()
    assert is_closed_silently(answer)


def test_long_token_does_not_wait_for_keys(tmp_path: Path, start: Start) -> None:
    """While the keys cannot be loaded each token waits in memory, and anybody can send one."""
    rig = start(
        sasl_oauthbearer_jwks_endpoint_url=(tmp_path / "missing").as_uri(),
        **SIGNED_TOKENS,
    )
    header = base64.urlsafe_b64encode(b'{"alg":"ES256","kid":"one"}').decode()
    for connection, size in ((2, 65_000), (3, 70_000)):
        rig.processors[0].introduce("10.0.0.7", connection=connection)
        rig.processors[0].send(
            HANDSHAKE, 1, {"mechanism": "OAUTHBEARER"}, connection=connection, flags=FLAG_LOGIN
        )
        rig.processors[0].answers()
        token = bearer(f"{header}.{'e' * size}.e30")
        rig.processors[0].send(
            AUTHENTICATE, 1, {"auth_bytes": token}, connection=connection, flags=FLAG_LOGIN
        )
    rig.settle()
    rig.advance_ms(200)
    (answer,) = rig.processors[0].answers()
    assert is_closed_silently(answer)


# -- whatever comes ----------------------------------------------------------------------------------------------

_LOGIN_FRAMES = [
    codec.encode_request(HANDSHAKE, 1, 7, "test", {"mechanism": "PLAIN"}),
    codec.encode_request(HANDSHAKE, 0, 7, "test", {"mechanism": SCRAM_SHA_256}),
    codec.encode_request(AUTHENTICATE, 2, 7, "test", {"auth_bytes": BAD}),
    codec.encode_request(
        AUTHENTICATE, 0, 7, "test", {"auth_bytes": ScramClient("sha256", "alice", "x").first()}
    ),
    codec.encode_request(ApiKey.API_VERSIONS, 0, 7, "test", {}),
    codec.encode_request(ApiKey.METADATA, 1, 7, "test", {"topics": None}),
]


@st.composite
def some_frames(draw: st.DrawFn) -> list[bytes]:
    """Frames of a login in any order, some of them damaged, and bytes that are none; no right password."""
    frames = []
    for _ in range(draw(st.integers(1, 6))):
        body = draw(st.sampled_from([frame[4:] for frame in _LOGIN_FRAMES]) | st.binary(max_size=60))
        if body and draw(st.booleans()):
            at = draw(st.integers(0, len(body) - 1))
            body = body[:at] + draw(st.binary(max_size=4)) + body[at + draw(st.integers(0, 3)) :]
        frames.append(struct.pack(">i", len(body)) + body)
    return frames


@pytest.mark.long
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=some_frames())
def test_random_frames_never_log_in_and_are_answered_once(
    shared_rig: tuple[HandlerRig, Iterator[int]], frames: list[bytes]
) -> None:
    rig, numbers = shared_rig
    connection = next(numbers)
    processor = rig.processors[0]
    processor.introduce("10.0.0.7", connection=connection)
    for frame in frames:
        processor.send_frames([frame], connection=connection, flags=FLAG_LOGIN)
        answers = processor.answers()
        if not answers:
            rig.advance_ms(100)
            answers = processor.answers()
        (answer,) = answers
        assert answer.connection_id == connection
        if answer.kind == CLOSE:
            break
        assert answer.kind == SEND
    processor.disconnect(connection)
    rig.settle()
    assert processor.sessions == {}
    assert rig.handler().containment.count == 0


@pytest.fixture(scope="module")
def shared_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HandlerRig, Iterator[int]]]:
    with HandlerRig(tmp_path_factory.mktemp("rig"), settings=SETTINGS) as rig:
        yield rig, itertools.count(1000)
