"""How the formats encrypt and log in: the security options of Spark's own connector, or a file of them.

`kafka.security.protocol`, `kafka.sasl.*` and `kafka.ssl.*` are options as any other. `kproc.client.config` names a
properties file, as `--command-config` does, so that no secret is among the options, which Spark may show; options go
over what it says. It is read by the driver; stores that it names must be where the tasks run, under the same paths.
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
    """Whether `read_security` reads the option of that name, in lower case."""
    return name == CLIENT_CONFIG or bool(
        name.startswith(_KAFKA) and security_names({name.removeprefix(_KAFKA): ""})
    )


def read_security(options: Mapping[str, str]) -> ClientSecurity:
    """What the options ask for; OptionError for what cannot be, before a task runs."""
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
    """What a file says, as options of Spark's own connector, whose clients are Java's."""
    try:
        security = parse_client_security(read_client_config(Path(path), _variable_of))
        return {f"{_KAFKA}{name}": value for name, value in java_properties(security).items()}
    except ConfigError as error:
        raise OptionError(str(error)) from None
