"""Settings of SASL: which listener and mechanism gets what, and what is refused before anything starts."""

from __future__ import annotations

import pytest

from kproc.broker.config import Config, ConfigError
from kproc.broker.config.sasl_settings import enabled_mechanisms, jaas_options, sasl_value
from tests.support.cases import in_one_test

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="w0rd";'
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
TOKENS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
UNSECURED = f'{TOKENS} unsecuredValidatorPrincipalClaimName="sub";'
MAP = "A:SASL_PLAINTEXT,B:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT"


SIGNED = {"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.jwks.endpoint.url": "file:///k"}


def config(**settings: object) -> Config:
    given = {
        "listeners": "A://127.0.0.1:1,B://127.0.0.1:2",
        "listener.security.protocol.map": MAP,
        **settings,
    }
    return Config.build(given)


def test_the_narrowest_setting_wins() -> None:
    made = config(
        **{
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.b.sasl.enabled.mechanisms": "PLAIN, SCRAM-SHA-512,PLAIN",
            "listener.name.b.PLAIN.sasl.jaas.config": PLAIN,
            "connections.max.reauth.ms": 1,
            "plain.connections.max.reauth.ms": 2,
            "listener.name.b.connections.max.reauth.ms": 3,
            "listener.name.b.plain.connections.max.reauth.ms": 4,
        }
    )
    assert enabled_mechanisms(made, "A") == ("SCRAM-SHA-256",)
    assert enabled_mechanisms(made, "B") == ("PLAIN", "SCRAM-SHA-512")
    assert jaas_options(made, "B", "PLAIN") == {"user_alice": "w0rd"}
    assert jaas_options(made, "B", "SCRAM-SHA-512") == {}
    lifetimes = {
        (listener, mechanism): sasl_value(made, listener, mechanism, "connections.max.reauth.ms")
        for listener in "AB"
        for mechanism in ("PLAIN", "SCRAM-SHA-512")
    }
    assert lifetimes == {
        ("A", "PLAIN"): 2, ("A", "SCRAM-SHA-512"): 1, ("B", "PLAIN"): 4, ("B", "SCRAM-SHA-512"): 3,
    }  # fmt: skip


def test_one_line_for_all_is_for_the_mechanism_that_it_names() -> None:
    made = config(**{"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256", "sasl.jaas.config": PLAIN})
    assert jaas_options(made, "A", "PLAIN") == {"user_alice": "w0rd"}
    assert jaas_options(made, "A", "SCRAM-SHA-256") == {}


@in_one_test(
    ("settings", "complaint"),
    [
        (
            {},
            r"^sasl\.enabled\.mechanisms: GSSAPI, the default, is not supported \(for A://127\.0\.0\.1:1\); "
            r"set one or more of PLAIN,",
        ),
        ({"sasl.enabled.mechanisms": "PLAIN,GSSAPI"}, r"^sasl\.enabled\.mechanisms: GSSAPI is not supported"),
        ({"sasl.enabled.mechanisms": "plain"}, r"^sasl\.enabled\.mechanisms: plain is not supported"),
        ({"sasl.enabled.mechanisms": ""}, r"^sasl\.enabled\.mechanisms: no mechanism is named"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, r"^listener\.name\.a\.plain\.sasl\.jaas\.config: PLAIN has no users"),
        (
            {"sasl.enabled.mechanisms": "PLAIN", "listener.name.a.plain.sasl.jaas.config": SCRAM},
            r"^listener\.name\.a\.plain\.sasl\.jaas\.config: ScramLoginModule is the login module of another mechanism",
        ),
        (
            {"sasl.enabled.mechanisms": "PLAIN", "plain.sasl.jaas.config": PLAIN[:-1]},
            r"^listener\.name\.a\.plain\.sasl\.jaas\.config: the line must end with a semicolon",
        ),
        (
            {"sasl.enabled.mechanisms": "SCRAM-SHA-256", "sasl.server.callback.handler.class": "x.Y"},
            r"^sasl\.server\.callback\.handler\.class=x\.Y: kproc cannot run Java classes",
        ),
        (
            {"sasl.enabled.mechanisms": "OAUTHBEARER"},
            r"^sasl\.oauthbearer\.jwks\.endpoint\.url: OAUTHBEARER needs this setting",
        ),
        (
            {"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.jaas.config": f"{TOKENS};"},
            r"^sasl\.oauthbearer\.jwks\.endpoint\.url: OAUTHBEARER needs this setting",
        ),
        (
            {"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.jwks.endpoint.url": "ftp://x/y"},
            r"^sasl\.oauthbearer\.jwks\.endpoint\.url=ftp://x/y: must begin with one of file, http, https",
        ),
        (
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.jaas.config": UNSECURED,
                "sasl.oauthbearer.jwks.endpoint.url": "file:///k",
            },
            "options for unsecured tokens conflict with",
        ),
        (
            {**SIGNED, "sasl.oauthbearer.expected.issuer": "i"},
            r"^sasl\.oauthbearer\.expected\.audience: .* of listener A needs this .*allow\.unverified\.audience=true",
        ),
        (
            {
                **SIGNED,
                "sasl.oauthbearer.expected.audience": "a",
                "listener.name.a.oauthbearer.sasl.oauthbearer.expected.issuer": "i",
                "listener.name.a.oauthbearer.sasl.oauthbearer.allow.unverified.issuer": "true",
            },
            r"^sasl\.oauthbearer\.expected\.issuer: .* of listener B needs this .*allow\.unverified\.issuer=true",
        ),
        (
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.jaas.config": UNSECURED.replace(";", ' unsecuredValidatorAllowableClockSkewMs="x";'),
            },
            "unsecuredValidatorAllowableClockSkewMs must be a number",
        ),
        (
            {
                "sasl.enabled.mechanisms": "SCRAM-SHA-256",
                "connections.max.idle.ms": 101,
                "connection.failed.authentication.delay.ms": 200,
            },
            r"^connection\.failed\.authentication\.delay\.ms=200: must be below connections\.max\.idle\.ms=101",
        ),
    ],
)  # fmt: skip
def test_unusable_sasl_settings_are_rejected_in_one_line(
    settings: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        config(**settings)
    assert "\n" not in str(refused.value)
    assert "w0rd" not in str(refused.value)


def test_unverified_claims_of_tokens_are_allowed_with_a_warning() -> None:
    warnings: list[str] = []
    given = {
        **SIGNED,
        "listeners": "SASL_PLAINTEXT://127.0.0.1:1",
        "sasl.oauthbearer.allow.unverified.audience": "true",
        "listener.name.sasl_plaintext.oauthbearer.sasl.oauthbearer.allow.unverified.issuer": "true",
    }
    Config.build(given, on_warning=warnings.append)
    assert warnings == [
        "sasl.oauthbearer.allow.unverified.audience=true: SASL_PLAINTEXT://127.0.0.1:1 accepts tokens of any audience",
        "sasl.oauthbearer.allow.unverified.issuer=true: SASL_PLAINTEXT://127.0.0.1:1 accepts tokens of any issuer",
    ]
    expected = {"sasl.oauthbearer.expected.audience": "a", "sasl.oauthbearer.expected.issuer": "i"}
    warnings.clear()
    Config.build(given | expected, on_warning=warnings.append)
    assert warnings == []


def test_a_listener_without_sasl_needs_none_of_it() -> None:
    made = config(**{"listeners": "PLAINTEXT://127.0.0.1:1", "sasl.server.callback.handler.class": "x.Y"})
    assert made.sasl_enabled_mechanisms == ("GSSAPI",)
