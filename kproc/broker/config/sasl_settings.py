"""Logins by SASL: which mechanisms a listener offers, who may log in, for how long. Rows of settings.py's table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
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

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
# Each mechanism and the login module that a JAAS line names for it.
LOGIN_MODULES: Final[Mapping[str, str]] = {
    PLAIN: "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    OAUTHBEARER: "OAuthBearerLoginModule",
}
USER_PREFIX: Final = "user_"
UNSECURED_PREFIX: Final = "unsecuredValidator"
SKEW_OPTION: Final = f"{UNSECURED_PREFIX}AllowableClockSkewMs"
# Kafka's class for tokens with a signature; kproc has that built in.
_VALIDATOR: Final = "OAuthBearerValidatorCallbackHandler"
_URL_SCHEMES: Final = ("file", "http", "https")


@dataclass(frozen=True, init=False, repr=False, eq=False)
class SaslSettings:
    """Mechanisms, credentials, sessions."""

    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        LIST,
        ("GSSAPI",),
        "Mechanisms that SASL listeners offer: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. Kafka's default, "
        "GSSAPI, is not offered: a SASL listener needs this setting.",
        per_listener=True,
    )
    sasl_jaas_config: Secret | None = setting(
        PASSWORD,
        None,
        'A mechanism\'s JAAS line, of which only the options count: PlainLoginModule required user_alice="..."; has '
        "PLAIN's users.",
        per_listener=True,
        per_mechanism=True,
    )
    connections_max_reauth_ms: int = setting(
        LONG,
        0,
        "How long a login is good for; then the client must authenticate again (KIP-368). 0: for ever.",
        at_least(0),
        per_listener=True,
        per_mechanism=True,
    )
    sasl_server_max_receive_size: int = setting(
        INT,
        524_288,
        "Limit of a request before the login, in bytes. A quarter of kproc.ring.bytes is a limit, too.",
        at_least(1),
    )
    connection_failed_authentication_delay_ms: int = setting(
        INT, 100, "How long a client whose login fails waits for the answer.", at_least(0)
    )
    sasl_server_callback_handler_class: str | None = setting(
        STRING,
        None,
        "Java classes cannot be run; only Kafka's OAuthBearerValidatorCallbackHandler may be named: it is built in.",
        per_listener=True,
        per_mechanism=True,
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = setting(
        STRING,
        None,
        "Where OAUTHBEARER's keys come from: a JSON Web Key Set, file:, http: or https:.",
        per_listener=True,
        per_mechanism=True,
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        LONG,
        3_600_000,
        "How often these keys are loaded again.",
        at_least(1),
        per_listener=True,
        per_mechanism=True,
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = setting(
        LIST, (), "A token must be for one of these.", per_listener=True, per_mechanism=True
    )
    sasl_oauthbearer_expected_issuer: str | None = setting(
        STRING, None, "A token must be from this one.", per_listener=True, per_mechanism=True
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        INT,
        30,
        "How far the clocks of token issuer and broker may be apart.",
        at_least(0),
        per_listener=True,
        per_mechanism=True,
    )
    sasl_oauthbearer_sub_claim_name: str = setting(
        STRING, "sub", "Where a token says who the client is.", per_listener=True, per_mechanism=True
    )
    kproc_authentication_timeout_ms: int = setting(
        LONG,
        30_000,
        "A client that has not logged in by then is disconnected; 0: only after connections.max.idle.ms, as in Kafka.",
        at_least(0),
    )
    kproc_sasl_scram_lenient_nonce: bool = setting(
        BOOLEAN,
        False,
        "Let SCRAM logins of librdkafka before 2.6.1 pass, which send their nonce twice; Kafka 4 refuses them.",
    )


def sasl_value(config: Any, listener: str, mechanism: str, name: str) -> Any:
    """A setting as it is for a listener's mechanism: its own, the mechanism's, the listener's, or everybody's."""
    own = f"{mechanism.lower()}.{name}"
    for where, key in ((listener, own), ("", own), (listener, name)):
        value = config.listener_value(where, key)
        if value is not None:
            return value
    return getattr(config, name.replace(".", "_"))


def enabled_mechanisms(config: Any, listener: str) -> tuple[str, ...]:
    """The mechanisms that a listener offers, in the order of the setting."""
    own: tuple[str, ...] | None = config.listener_value(listener, "sasl.enabled.mechanisms")
    mechanisms: tuple[str, ...] = config.sasl_enabled_mechanisms
    return tuple(dict.fromkeys(mechanisms if own is None else own))


def jaas_options(config: Any, listener: str, mechanism: str) -> dict[str, str]:
    """The options of a mechanism's JAAS line; none without a line. Raises JaasError."""
    secret: Secret | None = sasl_value(config, listener, mechanism, "sasl.jaas.config")
    line = parse_jaas(secret.reveal()) if secret is not None else JaasLine(LOGIN_MODULES[mechanism], {})
    if line.module == LOGIN_MODULES[mechanism]:
        return line.options
    if secret == config.sasl_jaas_config:
        return {}  # Everybody's line is another mechanism's.
    raise JaasError(f"{line.module} is no {LOGIN_MODULES[mechanism]}")


def listeners_without_users(config: Any, *, has_users: bool) -> list[str]:
    """Listeners that only SCRAM opens, while there is no user for it."""
    if has_users:
        return []
    return [
        str(end_point)
        for end_point in config.listeners
        if end_point.protocol.startswith("SASL_")
        and all(each.startswith("SCRAM-") for each in enabled_mechanisms(config, end_point.name))
    ]


def check_sasl(config: Any) -> None:
    """Refuse listeners on which nobody could log in, and settings that mean nothing here."""
    for end_point in config.listeners:
        if not end_point.protocol.startswith("SASL_"):
            continue
        mechanisms = enabled_mechanisms(config, end_point.name)
        unknown = [each for each in mechanisms if each not in LOGIN_MODULES]
        if unknown or not mechanisms:
            what = f"{', '.join(unknown)} is not offered" if unknown else "no mechanism is named"
            if unknown == ["GSSAPI"] == list(mechanisms):  # Nearly always because the setting is missing.
                what = "GSSAPI, the default, is not offered"
            raise ConfigError(
                f"sasl.enabled.mechanisms: {what} (for {end_point}); set it to some of {', '.join(LOGIN_MODULES)}"
            )
        for mechanism in mechanisms:
            _check_mechanism(config, end_point.name, mechanism)
    delay_ms, idle_ms = config.connection_failed_authentication_delay_ms, config.connections_max_idle_ms
    if 0 <= idle_ms <= delay_ms:
        raise ConfigError(
            f"connection.failed.authentication.delay.ms={delay_ms}: must be below connections.max.idle.ms={idle_ms}"
        )


def _check_mechanism(config: Any, listener: str, mechanism: str) -> None:
    name = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
    try:
        options = jaas_options(config, listener, mechanism)
    except JaasError as error:
        raise ConfigError(f"{name}: {error}") from None
    if mechanism == PLAIN and not any(option.startswith(USER_PREFIX) for option in options):
        raise ConfigError(
            f'{name}: PLAIN has no users; name them: {LOGIN_MODULES[PLAIN]} required user_<name>="<password>";'
        )
    handler = sasl_value(config, listener, mechanism, "sasl.server.callback.handler.class")
    if handler is not None and not (mechanism == OAUTHBEARER and handler.rpartition(".")[2] == _VALIDATOR):
        raise ConfigError(f"sasl.server.callback.handler.class={handler}: kproc runs no Java classes")
    if mechanism == OAUTHBEARER:
        _check_tokens(config, listener, options, name)


def _check_tokens(config: Any, listener: str, options: Mapping[str, str], jaas_name: str) -> None:
    url = sasl_value(config, listener, OAUTHBEARER, "sasl.oauthbearer.jwks.endpoint.url")
    is_unsecured = any(option.startswith(UNSECURED_PREFIX) for option in options)
    if not options.get(SKEW_OPTION, "0").isdecimal():
        raise ConfigError(f"{jaas_name}: {SKEW_OPTION} must be a number of milliseconds")
    if url is not None:
        if urlsplit(url).scheme not in _URL_SCHEMES:
            schemes = ", ".join(_URL_SCHEMES)
            raise ConfigError(
                f"sasl.oauthbearer.jwks.endpoint.url={show(url)}: must begin with one of {schemes}"
            )
        if is_unsecured:
            raise ConfigError(
                f"{jaas_name}: unsecured tokens are asked for, and sasl.oauthbearer.jwks.endpoint.url for signed ones"
            )
    elif not is_unsecured:
        raise ConfigError(
            "sasl.oauthbearer.jwks.endpoint.url: OAUTHBEARER needs it. (For tests, tokens without a signature are "
            f'accepted if {jaas_name} has an option such as unsecuredValidatorPrincipalClaimName="sub".)'
        )
