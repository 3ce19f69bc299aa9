"""Conversion of security settings for other clients: Java's properties, arguments of kafka-python and aiokafka.

Used by `kproc dev`, which prints how to connect, by `kproc.Broker.client_config` and for Spark's own connector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kproc.broker.config.values import ConfigError
from kproc.client.security.settings import ClientLogin, ClientSecurity, Store, Tls, login_module
from kproc.client.security.tls import is_pem_file


def client_configuration(kind: str, bootstrap: str, security: ClientSecurity) -> dict[str, Any]:
    """Return the settings that a client needs to connect. `kind` is the client, such as "java".

    Raises ValueError for an unknown one.
    """
    if kind == "confluent":
        from kproc.client.security.librdkafka import librdkafka_settings

        return {"bootstrap.servers": bootstrap, **librdkafka_settings(security)}
    if kind == "java":
        return {"bootstrap.servers": bootstrap, **java_properties(security)}
    if kind == "spark":
        options = {f"kafka.{name}": text for name, text in java_properties(security).items()}
        return {"kafka.bootstrap.servers": bootstrap, **options}
    if kind == "kafka-python":
        return {"bootstrap_servers": bootstrap, **kafka_python_arguments(security)}
    if kind == "aiokafka":
        return {"bootstrap_servers": bootstrap, **aiokafka_arguments(security)}
    raise ValueError(f"{kind!r} is none of confluent, java, kafka-python, aiokafka, spark")


def java_properties(security: ClientSecurity) -> dict[str, str]:
    """Return the security settings as properties of Kafka's Java clients and tools."""
    properties = {"security.protocol": security.protocol}
    if security.tls is not None:
        properties |= _java_tls(security.tls)
    if security.login is not None:
        properties |= _java_login(security.login)
    return properties


def _java_tls(tls: Tls) -> dict[str, str]:
    properties = _java_store("truststore", tls.trust, "certificates")
    properties |= _java_store("keystore", tls.key, "key")
    if tls.chain:
        if tls.key.location:
            raise ConfigError(
                "ssl.key.location: Java's clients need the key and its certificates in one file, ssl.keystore.location"
            )
        properties["ssl.keystore.certificate.chain"] = tls.chain.pem
    if tls.key_password:
        properties["ssl.key.password"] = tls.key_password
    if not tls.is_verified:
        raise ConfigError(
            "enable.ssl.certificate.verification=false: Java's clients always verify certificates"
        )
    if not tls.checks_host:
        properties["ssl.endpoint.identification.algorithm"] = ""
    return properties


def _java_store(which: str, store: Store, inline: str) -> dict[str, str]:
    if not store:
        return {}
    is_pem = bool(store.pem) or store.type == "PEM" or (not store.type and is_pem_file(store.location))
    properties = {f"ssl.{which}.type": "PEM" if is_pem else "PKCS12"}
    if store.pem:
        properties[f"ssl.{which}.{inline}"] = store.pem
    else:
        properties[f"ssl.{which}.location"] = store.location
    if store.password:
        properties[f"ssl.{which}.password"] = store.password
    return properties


def _java_login(login: ClientLogin) -> dict[str, str]:
    return {"sasl.mechanism": login.mechanism, "sasl.jaas.config": _jaas(login)} | (
        {"sasl.oauthbearer.token.endpoint.url": f"file://{login.token_file}"} if login.token_file else {}
    )


def _jaas(login: ClientLogin) -> str:
    options = {f"extension_{name}": value for name, value in login.extensions}
    if login.mechanism != "OAUTHBEARER":
        options = {"username": login.username, "password": login.password}
    elif login.username:
        options["unsecuredLoginStringClaim_sub"] = login.username
    elif login.token:
        raise ConfigError(
            "sasl.oauthbearer.token: Java's clients read the token from a file, sasl.oauthbearer.token.endpoint.url"
        )
    if login.is_delegation_token:
        options["tokenauth"] = "true"
    words = [f'{name}="{_escaped(value)}"' for name, value in options.items()]
    return " ".join((login_module(login.mechanism), "required", *words)) + ";"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def as_properties(lines: Mapping[str, str]) -> str:
    """Format properties as a Java properties file. Escape backslashes and line breaks."""
    return "".join(
        f"{name}={value}\n".replace("\\", "\\\\").rstrip("\n").replace("\n", "\\n") + "\n"
        for name, value in lines.items()
    )


def kafka_python_arguments(security: ClientSecurity) -> dict[str, Any]:
    """Return arguments for kafka-python's KafkaProducer, KafkaConsumer and KafkaAdminClient."""
    arguments: dict[str, Any] = {"security_protocol": security.protocol}
    if security.tls is not None:
        arguments["ssl_check_hostname"] = security.tls.checks_host
        if security.tls.trust:
            arguments["ssl_cafile"] = _pem_location(security.tls.trust)
        if security.tls.key:
            arguments["ssl_keyfile"] = _pem_location(security.tls.key)
            arguments["ssl_certfile"] = _pem_location(security.tls.chain or security.tls.key)
            if security.tls.key_password:
                arguments["ssl_password"] = security.tls.key_password
    return arguments | _python_login(security.login)


def aiokafka_arguments(security: ClientSecurity) -> dict[str, Any]:
    """Return arguments for AIOKafkaProducer and AIOKafkaConsumer. TLS settings become an ssl.SSLContext."""
    from kproc.client.security.tls import client_context

    arguments: dict[str, Any] = {"security_protocol": security.protocol}
    if security.tls is not None:
        arguments["ssl_context"] = client_context(security.tls)
    return arguments | _python_login(security.login)


def _python_login(login: ClientLogin | None) -> dict[str, Any]:
    if login is None:
        return {}
    if login.mechanism == "OAUTHBEARER" or login.is_delegation_token:
        raise ConfigError(
            f"sasl.mechanism: kproc cannot translate a login with a token ({login.mechanism}); set the arguments of "
            "kafka-python or aiokafka yourself"
        )
    return {
        "sasl_mechanism": login.mechanism,
        "sasl_plain_username": login.username,
        "sasl_plain_password": login.password,
    }


def _pem_location(store: Store) -> str:
    if not store.location or store.type == "PKCS12" or not is_pem_file(store.location):
        raise ConfigError("kafka-python takes certificates and keys only as PEM files")
    return store.location
