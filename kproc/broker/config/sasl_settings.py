"""Settings of SASL: mechanisms, credentials and the lifetime of logins. Rows of settings.py's table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from kproc.broker.config.jaas import JaasError, JaasLine, parse_jaas
from kproc.broker.config.values import (
    BOOLEAN,
    INT,
    LIST,
    LONG,
    PASSWORD,
    STRING,
    ConfigError,
    Secret,
    at_least,
    setting,
    show,
)

if TYPE_CHECKING:
    from kproc.broker.config.listeners import EndPoint

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
# The login module that a JAAS line names for each mechanism.
LOGIN_MODULES: Final[Mapping[str, str]] = {
    PLAIN: "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    OAUTHBEARER: "OAuthBearerLoginModule",
}
USER_PREFIX: Final = "user_"
UNSECURED_PREFIX: Final = "unsecuredValidator"
SKEW_OPTION: Final = f"{UNSECURED_PREFIX}AllowableClockSkewMs"
# Kafka's class that validates signed tokens. Files for Kafka name it, so kproc accepts the name and validates the
# tokens with its own code.
_VALIDATOR: Final = "OAuthBearerValidatorCallbackHandler"
_URL_SCHEMES: Final = ("file", "http", "https")


@dataclass(frozen=True, init=False, repr=False, eq=False)
class SaslSettings:
    """Settings of SASL: mechanisms, credentials, sessions."""

    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        LIST,
        ("GSSAPI",),
        "Mechanisms that SASL listeners offer: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. A SASL listener needs "
        "this setting, because kproc does not support Kafka's default, GSSAPI.",
        per_listener=True,
    )
    sasl_jaas_config: Secret | None = setting(
        PASSWORD,
        None,
        "JAAS line of a mechanism. Only its options have an effect. PLAIN's users are options: "
        'PlainLoginModule required user_alice="...";',
        per_listener=True,
        per_mechanism=True,
    )
    connections_max_reauth_ms: int = setting(
        LONG,
        0,
        "Time in ms after which a client must authenticate again (KIP-368). 0: never.",
        at_least(0),
        per_listener=True,
        per_mechanism=True,
    )
    sasl_server_max_receive_size: int = setting(
        INT,
        524_288,
        "Largest request in bytes before the login is complete. A quarter of kproc.ring.bytes is a second limit.",
        at_least(1),
    )
    connection_failed_authentication_delay_ms: int = setting(
        INT, 100, "Time in ms by which the response to a failed login is delayed.", at_least(0)
    )
    sasl_server_callback_handler_class: str | None = setting(
        STRING,
        None,
        "Class that validates OAUTHBEARER tokens. Only Kafka's OAuthBearerValidatorCallbackHandler is accepted, which "
        "kproc has built in, because kproc cannot run Java classes.",
        per_listener=True,
        per_mechanism=True,
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = setting(
        STRING,
        None,
        "URL of the JSON Web Key Set with which OAUTHBEARER tokens are verified: file:, http: or https:.",
        per_listener=True,
        per_mechanism=True,
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        LONG,
        3_600_000,
        "Interval in ms at which the JSON Web Key Set is loaded again.",
        at_least(1),
        per_listener=True,
        per_mechanism=True,
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = setting(
        LIST,
        (),
        "Accepted audiences. A token must name one of them. A listener with signed tokens needs this setting.",
        per_listener=True,
        per_mechanism=True,
    )
    sasl_oauthbearer_expected_issuer: str | None = setting(
        STRING,
        None,
        "Accepted issuer of tokens. A listener with signed tokens needs this setting.",
        per_listener=True,
        per_mechanism=True,
    )
    sasl_oauthbearer_allow_unverified_audience: bool = setting(
        BOOLEAN,
        False,
        "Start without sasl.oauthbearer.expected.audience, and accept tokens that were issued for other services.",
        per_listener=True,
        per_mechanism=True,
    )
    sasl_oauthbearer_allow_unverified_issuer: bool = setting(
        BOOLEAN,
        False,
        "Start without sasl.oauthbearer.expected.issuer, and accept tokens of each issuer whose keys are in the set.",
        per_listener=True,
        per_mechanism=True,
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        INT,
        30,
        "Maximum difference in seconds between the clocks of the token's issuer and the broker.",
        at_least(0),
        per_listener=True,
        per_mechanism=True,
    )
    sasl_oauthbearer_sub_claim_name: str = setting(
        STRING, "sub", "Claim of a token that has the user name.", per_listener=True, per_mechanism=True
    )
    kproc_authentication_timeout_ms: int = setting(
        LONG,
        30_000,
        "Time in ms within which a client must log in; otherwise the broker closes the connection. 0: no limit but "
        "connections.max.idle.ms, as in Kafka.",
        at_least(0),
    )
    kproc_sasl_scram_lenient_nonce: bool = setting(
        BOOLEAN,
        False,
        "Accept SCRAM logins of librdkafka before 2.6.1, which sends its nonce twice. Kafka 4 rejects them.",
    )


def sasl_value(config: Any, listener: str, mechanism: str, name: str) -> Any:
    """Return the setting for a mechanism of a listener.

    The first of these that is set: for this mechanism on this listener, for this mechanism, for this listener, plain.
    """
    own = f"{mechanism.lower()}.{name}"
    # Kafka's precedence: the most specific name wins.
    for where, key in ((listener, own), ("", own), (listener, name)):
        value = config.listener_value(where, key)
        if value is not None:
            return value
    return getattr(config, name.replace(".", "_"))


def enabled_mechanisms(config: Any, listener: str) -> tuple[str, ...]:
    """Return the mechanisms that a listener offers, in the order of the setting."""
    own: tuple[str, ...] | None = config.listener_value(listener, "sasl.enabled.mechanisms")
    mechanisms: tuple[str, ...] = config.sasl_enabled_mechanisms
    return tuple(dict.fromkeys(mechanisms if own is None else own))


def jaas_options(config: Any, listener: str, mechanism: str) -> dict[str, str]:
    """Return the options of a mechanism's JAAS line, or {} if no line is set for the mechanism. Raises JaasError."""
    secret: Secret | None = sasl_value(config, listener, mechanism, "sasl.jaas.config")
    line = parse_jaas(secret.reveal()) if secret is not None else JaasLine(LOGIN_MODULES[mechanism], {})
    if line.module == LOGIN_MODULES[mechanism]:
        return line.options
    if secret == config.sasl_jaas_config:
        # The plain setting holds for all mechanisms, so its JAAS line may belong to another mechanism.
        return {}
    raise JaasError(f"{line.module} is the login module of another mechanism; use {LOGIN_MODULES[mechanism]}")


def listeners_without_users(config: Any, *, has_users: bool) -> list[str]:
    """Return the listeners on which no client can log in: those that offer only SCRAM, or [] if SCRAM users exist."""
    if has_users:
        return []
    return [
        str(end_point)
        for end_point in config.listeners
        if end_point.protocol.startswith("SASL_")
        and all(each.startswith("SCRAM-") for each in enabled_mechanisms(config, end_point.name))
    ]


def check_sasl(config: Any) -> None:
    """Raise ConfigError if check_sasl_listener does, or if failed logins are delayed beyond connections.max.idle.ms."""
    for end_point in config.listeners:
        check_sasl_listener(config, end_point)
    delay_ms, idle_ms = config.connection_failed_authentication_delay_ms, config.connections_max_idle_ms
    # A delayed connection would be closed as idle before the client gets the reason.
    if 0 <= idle_ms <= delay_ms:
        raise ConfigError(
            f"connection.failed.authentication.delay.ms={delay_ms}: must be below connections.max.idle.ms={idle_ms}"
        )


def check_sasl_listener(config: Any, end_point: EndPoint) -> None:
    """Raise ConfigError for a listener with SASL on which no client could log in, or anybody could."""
    if not end_point.protocol.startswith("SASL_"):
        return
    mechanisms = enabled_mechanisms(config, end_point.name)
    unknown = [each for each in mechanisms if each not in LOGIN_MODULES]
    if unknown or not mechanisms:
        problem = f"{', '.join(unknown)} is not supported" if unknown else "no mechanism is named"
        if unknown == ["GSSAPI"] == list(mechanisms):
            # Say that GSSAPI is the default, because the user has nearly always not set it.
            problem = "GSSAPI, the default, is not supported"
        raise ConfigError(
            f"sasl.enabled.mechanisms: {problem} (for {end_point}); set one or more of {', '.join(LOGIN_MODULES)}"
        )
    for mechanism in mechanisms:
        _check_mechanism(config, end_point.name, mechanism)


def _check_mechanism(config: Any, listener: str, mechanism: str) -> None:
    name = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
    try:
        options = jaas_options(config, listener, mechanism)
    except JaasError as error:
        raise ConfigError(f"{name}: {error}") from None
    # Without users PLAIN would reject every login, which the administrator would see only at the first one.
    if mechanism == PLAIN and not any(option.startswith(USER_PREFIX) for option in options):
        raise ConfigError(
            f'{name}: PLAIN has no users; add them: {LOGIN_MODULES[PLAIN]} required user_<name>="<password>";'
        )
    handler = sasl_value(config, listener, mechanism, "sasl.server.callback.handler.class")
    # Reject an unknown handler, because the broker would otherwise accept logins that the handler would have rejected.
    if handler is not None and not (mechanism == OAUTHBEARER and handler.rpartition(".")[2] == _VALIDATOR):
        raise ConfigError(f"sasl.server.callback.handler.class={handler}: kproc cannot run Java classes")
    if mechanism == OAUTHBEARER:
        _check_tokens(config, listener, options, name)


def _claims(config: Any, listener: str) -> Iterator[tuple[str, bool, bool]]:
    """Yield (claim, is verified, may stay unverified) for each claim of tokens that a listener should verify."""
    for claim, expected, allowed in (
        ("audience", "expected.audience", "allow.unverified.audience"),
        ("issuer", "expected.issuer", "allow.unverified.issuer"),
    ):
        is_verified, is_allowed = (
            bool(sasl_value(config, listener, OAUTHBEARER, f"sasl.oauthbearer.{name}"))
            for name in (expected, allowed)
        )
        yield claim, is_verified, is_allowed


def unverified_claims(config: Any) -> list[str]:
    """Return a warning for each claim of signed tokens that a listener does not verify. Call it after check_sasl."""
    return [
        f"sasl.oauthbearer.allow.unverified.{claim}=true: {end_point} accepts tokens of any {claim}"
        for end_point in config.listeners
        if end_point.protocol.startswith("SASL_")
        and OAUTHBEARER in enabled_mechanisms(config, end_point.name)
        if sasl_value(config, end_point.name, OAUTHBEARER, "sasl.oauthbearer.jwks.endpoint.url") is not None
        for claim, is_verified, _ in _claims(config, end_point.name)
        if not is_verified
    ]


def _check_tokens(config: Any, listener: str, options: Mapping[str, str], jaas_name: str) -> None:
    url = sasl_value(config, listener, OAUTHBEARER, "sasl.oauthbearer.jwks.endpoint.url")
    is_unsecured = any(option.startswith(UNSECURED_PREFIX) for option in options)
    if not options.get(SKEW_OPTION, "0").isdecimal():
        raise ConfigError(f"{jaas_name}: {SKEW_OPTION} must be a number of milliseconds")
    if url is not None:
        # The keys decide whose tokens are valid, so they may come from a file or a server, not from any handler that
        # urllib knows.
        if urlsplit(url).scheme not in _URL_SCHEMES:
            schemes = ", ".join(_URL_SCHEMES)
            raise ConfigError(
                f"sasl.oauthbearer.jwks.endpoint.url={show(url)}: must begin with one of {schemes}"
            )
        if is_unsecured:
            raise ConfigError(
                f"{jaas_name}: options for unsecured tokens conflict with sasl.oauthbearer.jwks.endpoint.url, which is "
                "for signed tokens; set only one of them"
            )
        for claim, is_verified, is_allowed in _claims(config, listener):
            if not is_verified and not is_allowed:
                raise ConfigError(
                    f"sasl.oauthbearer.expected.{claim}: OAUTHBEARER of listener {listener} needs this setting, as "
                    f"Kafka since 4.4; set it, or sasl.oauthbearer.allow.unverified.{claim}=true to accept any {claim}"
                )
    elif not is_unsecured:
        raise ConfigError(
            "sasl.oauthbearer.jwks.endpoint.url: OAUTHBEARER needs this setting. (For tests kproc accepts tokens "
            f'without a signature if {jaas_name} has an option such as unsecuredValidatorPrincipalClaimName="sub".)'
        )
