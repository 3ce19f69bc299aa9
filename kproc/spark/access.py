"""Security options of the Spark formats: TLS and SASL settings, as options or in a properties file.

`kafka.security.protocol`, `kafka.sasl.*` and `kafka.ssl.*` have the names and meanings of Spark's own connector.
Spark can show options to users, so `kproc.client.config` names a properties file for secrets, like `--command-config`
of the commands. An option overrides the file. The driver reads the file. Key and trust stores that it names must exist
under the same paths on every host that runs tasks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kproc.broker.config.values import ConfigError
from kproc.client.security.settings import (
    ClientSecurity,
    parse_client_security,
    read_client_config,
    security_names,
)
from kproc.client.security.tls import client_context
from kproc.client.security.written import java_properties
from kproc.spark.option_values import OptionError

CLIENT_CONFIG: Final = "kproc.client.config"
_KAFKA: Final = "kafka."
_variable_of: Final = os.environ.get  # noqa: TID251 - a file may name a variable that holds a secret


def is_about_security(name: str) -> bool:
    """Return True if `read_security` reads this option. `name` is in lower case."""
    return name == CLIENT_CONFIG or bool(
        name.startswith(_KAFKA) and security_names({name.removeprefix(_KAFKA): ""})
    )


def read_security(options: Mapping[str, str]) -> ClientSecurity:
    """Return the security settings in a format's options. The driver calls this before any task runs.

    Raises OptionError if a setting is invalid, or if the TLS context cannot be built from it.
    """
    properties: dict[str, str] = {}
    try:
        if path := options.get(CLIENT_CONFIG, "").strip():
            properties |= read_client_config(Path(path), _variable_of)
        properties |= {
            name.removeprefix(_KAFKA): value
            for name, value in options.items()
            if name != CLIENT_CONFIG and is_about_security(name)
        }
        security = parse_client_security(properties, _KAFKA)
        if security.tls is not None:
            client_context(security.tls)
    except ConfigError as error:
        raise OptionError(str(error)) from None
    return security


def connector_options(path: str) -> dict[str, str]:
    """Return a properties file's settings as options for Spark's own connector, which uses Kafka's Java clients."""
    try:
        security = parse_client_security(read_client_config(Path(path), _variable_of))
        return {f"{_KAFKA}{name}": value for name, value in java_properties(security).items()}
    except ConfigError as error:
        raise OptionError(str(error)) from None
