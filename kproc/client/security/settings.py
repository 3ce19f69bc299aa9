"""Parser of a client's security settings. It accepts the names of Kafka's clients and of librdkafka.

A file for `--command-config` can be one for Kafka's own tools: settings that do not concern security are ignored.
Unsupported security settings are rejected. No message shows a value that can be a secret. Only `read_client_config`
does I/O.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kproc.broker.config.jaas import JaasError, JaasLine, parse_jaas
from kproc.broker.config.sources import parse_properties
from kproc.broker.config.values import ConfigError, show
from kproc.common.regular_file import read_bounded_text

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SCRAM_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS: Final = ("PLAIN", *SCRAM_MECHANISMS, "OAUTHBEARER")
TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
STORE_TYPES: Final = ("PEM", "PKCS12")
_FAMILIES: Final = ("security.", "sasl.", "ssl.", "enable.ssl.")
# Names of librdkafka's settings that have the same meaning as a setting of Kafka's clients, and that setting.
_LIBRDKAFKA: Final = {
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.username": "sasl.username",
    "sasl.password": "sasl.password",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.keystore.pem": "ssl.keystore.key",
    "ssl.key.pem": "ssl.keystore.key",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
}
# Settings of Kafka's Java clients that this client accepts and ignores.
_WITHOUT_EFFECT: Final = (
    "security.providers",
    "ssl.provider",
    "ssl.keymanager.algorithm",
    "ssl.trustmanager.algorithm",
    "ssl.secure.random.implementation",
    "ssl.cipher.suites",
)
_WITHOUT_EFFECT_FAMILIES: Final = (
    "sasl.kerberos.",
    "sasl.login.refresh.",
    "sasl.login.connect.",
    "sasl.login.read.",
    "sasl.login.retry.",
    "sasl.oauthbearer.scope.",
    "sasl.oauthbearer.sub.",
    "sasl.oauthbearer.clock.",
)
_KNOWN: Final = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.jaas.config",
    "sasl.username",
    "sasl.password",
    "sasl.oauthbearer.token",
    "sasl.oauthbearer.token.endpoint.url",
    "ssl.protocol",
    "ssl.enabled.protocols",
    "ssl.truststore.location",
    "ssl.truststore.type",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
    *_LIBRDKAFKA,
)
_REFUSED: Final = {
    "ssl.engine.factory.class": "a Java class cannot run here",
    "sasl.client.callback.handler.class": "a Java class cannot run here",
    "sasl.login.callback.handler.class": (
        "a Java class cannot run here: put the token into a file and name it by "
        "sasl.oauthbearer.token.endpoint.url=file:///..."
    ),
    "sasl.login.class": "a Java class cannot run here",
}
_VARIABLE: Final = re.compile(r"\$\{(env|file|dir):([^}]*)\}")
Environment = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Store:
    """Certificates, or a key with its certificates: the path of a file, or PEM text."""

    location: str = ""
    type: str = ""
    """PEM or PKCS12. If it is empty, the format is recognised by the file's content."""
    password: str = field(default="", repr=False)
    pem: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.location or self.pem)


@dataclass(frozen=True, slots=True)
class Tls:
    """The TLS settings of a client: trust, certificate and protocol options."""

    trust: Store = Store()
    """The trusted certificate authorities. If it is empty, the client trusts those of this host's OpenSSL."""
    key: Store = Store()
    chain: Store = Store()
    """The certificate chain of the client's key, if the store `key` does not contain it."""
    key_password: str = field(default="", repr=False)
    checks_host: bool = True
    versions: tuple[str, ...] = TLS_VERSIONS
    is_verified: bool = True
    """False with librdkafka's enable.ssl.certificate.verification=false. The broker's certificate is not checked."""


@dataclass(frozen=True, slots=True)
class ClientLogin:
    """The SASL login of a client: mechanism and credentials."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    token_file: str = ""
    extensions: tuple[tuple[str, str], ...] = ()
    is_delegation_token: bool = False


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """All security settings of a client. It is hashable, so that a cache of connections can use it in its keys."""

    tls: Tls | None = None
    login: ClientLogin | None = None

    @property
    def protocol(self) -> str:
        """The security.protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        if self.login is None:
            return "PLAINTEXT" if self.tls is None else "SSL"
        return "SASL_PLAINTEXT" if self.tls is None else "SASL_SSL"


PLAINTEXT: Final = ClientSecurity()


def read_client_config(path: Path, environment: Environment | None = None) -> dict[str, str]:
    """Return the properties of a file for --command-config. Raise ConfigError if it cannot be read.

    `${env:NAME}`, `${file:/path:key}` and `${dir:/path:file}` are replaced by the variable, the property or the file's
    content, as by Kafka's ConfigProviders.
    """
    try:
        text = read_bounded_text(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a properties file: it is not UTF-8") from None
    return {name: _provided(name, value, environment) for name, value in parse_properties(text).items()}


def _provided(name: str, value: str, environment: Environment | None) -> str:
    """Return the value with `${env:...}`, `${file:...}` and `${dir:...}` replaced, as by Kafka's ConfigProviders."""

    def find_value(match: re.Match[str]) -> str:
        kind, what = match[1], match[2]
        if kind == "env":
            found = environment(what) if environment is not None else None
            if found is None:
                raise ConfigError(f"{name}: {match[0]}: there is no such environment variable")
            return found
        place, _, key = what.rpartition(":")
        try:
            # As in DirectoryConfigProvider (KIP-632), the key is a file name and the file's content the value. Remove
            # the newline at the end, which editors add and which does not belong to a password.
            if kind == "dir":
                return read_bounded_text(Path(place, key)).rstrip("\n")
            return parse_properties(read_bounded_text(place))[key]
        except OSError as error:
            raise ConfigError(f"{name}: {match[0]}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{name}: {match[0]}: the file is not UTF-8") from None
        except KeyError:
            raise ConfigError(f"{name}: {match[0]}: the file has no property {key}") from None

    found = _VARIABLE.sub(find_value, value)
    try:
        found.encode()
    except UnicodeEncodeError:
        # The error of a later request would show the value, which can be a password.
        raise ConfigError(f"{name}: the value is not UTF-8") from None
    return found


def parse_client_security(properties: Mapping[str, str], prefix: str = "") -> ClientSecurity:
    """Parse the settings of a client. Raise ConfigError for invalid ones. Its message contains no secret value.

    prefix: stands before each setting's name in messages, such as `kafka.` for options of Spark.
    """
    # Strip blanks around a value, as Kafka's clients do. But sasl.password is librdkafka's setting, and it keeps them.
    given = {
        name: value if name == "sasl.password" else value.strip()
        for name, value in properties.items()
        if name.startswith(_FAMILIES)
    }
    return _SecurityParser(given, prefix).parse()


def security_names(properties: Mapping[str, str]) -> list[str]:
    """Return the names of the security settings among the properties, those that `parse_client_security` reads."""
    return [name for name in properties if name.startswith(_FAMILIES)]


class _SecurityParser:
    """Parser of the TLS and SASL settings in one set of client properties."""

    def __init__(self, given: Mapping[str, str], prefix: str) -> None:
        self._prefix = prefix
        self._given = dict(given)
        self._check_names()
        for alias, name in _LIBRDKAFKA.items():
            if alias in self._given:
                self._given.setdefault(name, self._given[alias])

    def parse(self) -> ClientSecurity:
        protocol = self._text("security.protocol").upper() or "PLAINTEXT"
        if protocol not in PROTOCOLS:
            raise self._error("security.protocol", f"{show(protocol)} is none of {', '.join(PROTOCOLS)}")
        has_login = protocol.startswith("SASL_")
        if not has_login and (self._text("sasl.jaas.config") or self._text("sasl.username")):
            # Reject credentials without a SASL protocol, because the client would connect without a login and without a
            # message.
            wanted = "SASL_PLAINTEXT or SASL_SSL"
            raise self._error(
                "security.protocol", f"{protocol} has no login, but credentials are set: use {wanted}"
            )
        return ClientSecurity(
            tls=self._tls() if protocol.endswith("SSL") else None,
            login=self._login() if has_login else None,
        )

    def _error(self, name: str, problem: str) -> ConfigError:
        return ConfigError(f"{self._prefix}{name}: {problem}")

    def _text(self, name: str) -> str:
        return self._given.get(name, "")

    def _check_names(self) -> None:
        for name in self._given:
            if name in _KNOWN or name in _WITHOUT_EFFECT or name.startswith(_WITHOUT_EFFECT_FAMILIES):
                continue
            if name in _REFUSED:
                raise self._error(name, _REFUSED[name])
            near = difflib.get_close_matches(name, _KNOWN, 1)
            hint = f": did you mean {self._prefix}{near[0]}?" if near else ""
            raise ConfigError(f"there is no security setting {self._prefix}{name} of a client{hint}")

    # -- TLS

    def _tls(self) -> Tls:
        verifies = self._text("enable.ssl.certificate.verification").lower() or "true"
        if verifies not in ("true", "false"):
            raise self._error("enable.ssl.certificate.verification", "must be true or false")
        # KIP-294: the default is https, which checks the host name in the broker's certificate. An empty value disables
        # that.
        algorithm = self._given.get("ssl.endpoint.identification.algorithm", "https").lower()
        if algorithm not in ("https", "", "none"):
            raise self._error(
                "ssl.endpoint.identification.algorithm", f"{show(algorithm)} is neither https nor empty"
            )
        key = self._store("keystore", "ssl.keystore.key")
        chain = Store(pem=self._pem("ssl.keystore.certificate.chain"))
        if location := self._text("ssl.key.location"):
            key = Store(location=location, type="PEM")
            chain = Store(location=self._text("ssl.certificate.location"), type="PEM")
            if not chain:
                raise self._error("ssl.certificate.location", "is missing, but ssl.key.location needs it")
        if key.pem and not chain:
            raise self._error("ssl.keystore.certificate.chain", "is missing, but ssl.keystore.key needs it")
        return Tls(
            trust=self._store("truststore", "ssl.truststore.certificates"),
            key=key,
            chain=chain,
            key_password=self._given.get("ssl.key.password", ""),
            checks_host=algorithm == "https",
            versions=self._versions(),
            is_verified=verifies == "true",
        )

    def _store(self, which: str, inline: str) -> Store:
        type_ = self._text(f"ssl.{which}.type").upper()
        if type_ not in ("", "JKS", *STORE_TYPES):
            raise self._error(f"ssl.{which}.type", f"{show(type_)} is none of {', '.join(STORE_TYPES)}")
        # JKS is Kafka's default store type, and Java also reads PKCS12 files if the type is JKS. So recognise the
        # format by the file's content.
        return Store(
            location=self._text(f"ssl.{which}.location"),
            type="" if type_ == "JKS" else type_,
            password=self._given.get(f"ssl.{which}.password", ""),
            pem=self._pem(inline),
        )

    def _pem(self, name: str) -> str:
        """Return a PEM setting with line breaks. Properties files have it in one line, with blanks or with `\\n`."""
        text = self._text(name)
        if not text:
            return ""
        if "-----BEGIN" not in text:
            raise self._error(name, "is not PEM, because it has no -----BEGIN ...-----")

        def lines(match: re.Match[str]) -> str:
            body = "\n".join(match[2].split())
            return f"-----BEGIN {match[1]}-----\n{body}\n-----END {match[1]}-----\n"

        return re.sub(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----\s*", lines, text, flags=re.DOTALL)

    def _versions(self) -> tuple[str, ...]:
        listed = self._text("ssl.enabled.protocols") or self._text("ssl.protocol")
        if not listed or listed == "TLS":
            return TLS_VERSIONS
        versions = tuple(each for each in TLS_VERSIONS if each in [one.strip() for one in listed.split(",")])
        if not versions:
            raise self._error(
                "ssl.enabled.protocols", f"names none of the supported versions {', '.join(TLS_VERSIONS)}"
            )
        return versions

    # -- SASL

    def _login(self) -> ClientLogin:
        mechanism = self._text("sasl.mechanism").upper()
        if not mechanism:
            raise self._error("sasl.mechanism", f"is missing: one of {', '.join(MECHANISMS)}")
        if mechanism not in MECHANISMS:
            raise self._error("sasl.mechanism", f"{show(mechanism)} is none of {', '.join(MECHANISMS)}")
        text = self._text("sasl.jaas.config")
        try:
            line = parse_jaas(text) if text else JaasLine("", {})
        except JaasError as error:
            raise self._error("sasl.jaas.config", str(error)) from None
        if mechanism == "OAUTHBEARER":
            return self._bearer(line)
        username = line.options.get("username") or self._text("sasl.username")
        password = line.options.get("password") or self._given.get("sasl.password", "")
        if not username or not password:
            raise self._error(
                "sasl.jaas.config",
                f'it has no username and password: {line.module or login_module(mechanism)} required username="..." '
                'password="..."; (or give sasl.username and sasl.password)',
            )
        # KIP-48: with tokenauth=true in the JAAS line the user name is the id of a delegation token, which logs in by
        # SCRAM.
        is_token = line.options.get("tokenauth", "false").lower() == "true"
        return ClientLogin(mechanism, username, password, is_delegation_token=is_token)

    def _bearer(self, line: JaasLine) -> ClientLogin:
        extensions = tuple(
            (name.removeprefix("extension_"), value)
            for name, value in sorted(line.options.items())
            if name.startswith("extension_")
        )
        url = self._text("sasl.oauthbearer.token.endpoint.url")
        if url and not url.startswith("file:"):
            raise self._error(
                "sasl.oauthbearer.token.endpoint.url",
                "kproc does not fetch tokens from a server: store a token in a file and set this to file:///path",
            )
        token = self._text("sasl.oauthbearer.token")
        if token or url:
            path = url.removeprefix("file:")
            return ClientLogin(
                "OAUTHBEARER",
                token=token,
                token_file=path[2:] if path.startswith("///") else path,
                extensions=extensions,
            )
        subject = line.options.get("unsecuredLoginStringClaim_sub", "")
        if not subject:
            raise self._error(
                "sasl.oauthbearer.token",
                "is missing: the token, or sasl.oauthbearer.token.endpoint.url=file:///path/of/it",
            )
        return ClientLogin("OAUTHBEARER", username=subject, extensions=extensions)


def login_module(mechanism: str) -> str:
    """Return the name of the Java class that a JAAS line has for a SASL mechanism."""
    if mechanism == "OAUTHBEARER":
        return "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    kind, package = ("Plain", "plain") if mechanism == "PLAIN" else ("Scram", "scram")
    return f"org.apache.kafka.common.security.{package}.{kind}LoginModule"
