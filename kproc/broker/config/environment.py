"""Settings in environment variables: KPROC_NUM_IO_THREADS stands for num.io.threads.

The variable of a setting is its name in upper case, with `_` for each dot and KPROC_ in front. kproc's own settings
have the prefix once: KPROC_FLUSH stands for kproc.flush. Only `kproc serve --from-env` reads them. Variables of kproc's
commands share the prefix, and a variable that somebody has forgotten in a shell must not change a broker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from kproc.broker.config.sasl_settings import LOGIN_MODULES
from kproc.broker.config.unhonoured import KNOWN_UNHONOURED
from kproc.broker.config.values import ConfigError, Setting

PREFIX: Final = "KPROC_"
_OWN_PREFIX: Final = "kproc."
_LISTENER: Final = "LISTENER_NAME_"
# Variables of kproc's commands, scripts and pipelines, which are no settings of a broker.
OTHER_VARIABLES: Final = frozenset(
    (
        "KPROC_BOOTSTRAP",
        "KPROC_COMMAND_CONFIG",
        "KPROC_CONTROL_TOKEN",
        "KPROC_DATA",
        "KPROC_FREE_THREADED_PYTHON",
        "KPROC_PROFILE",
        "KPROC_VENV",
        "KPROC_WORKER_PYTHON",
    )
)
# Kubernetes and Docker set these for a service that is called kproc or kproc-..., so they must not stop the broker. Not
# compiled yet, because a start without --from-env does not use the pattern.
_SERVICE_LINK: Final = r"KPROC_(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_(TCP|UDP|SCTP)(_.*)?)?)"


class VariableValue(NamedTuple):
    """The value of a setting that comes from an environment variable, and the variable's name."""

    value: str
    variable: str


def variable_of(name: str) -> str:
    """Return the name of the environment variable that can set a setting."""
    return PREFIX + name.removeprefix(_OWN_PREFIX).replace(".", "_").upper()


def setting_of(variable: str, table: Mapping[str, Setting]) -> str:
    """Return the name of a variable's setting. For an unknown variable, return the name that it would stand for."""
    return _setting_of(variable, _names(table), table)


def read_variables(environment: Mapping[str, str], table: Mapping[str, Setting]) -> dict[str, VariableValue]:
    """Return the value of each setting that has a variable. Names may be unknown; build.py rejects them.

    Raises ConfigError for two variables of one setting.
    """
    names = _names(table)
    found: dict[str, VariableValue] = {}
    for variable, value in environment.items():
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES:
            continue
        # KPROC_PORT also stands for `port`, a setting of old Kafka. Only the variable of a service has a URL as its
        # value.
        if re.fullmatch(_SERVICE_LINK, variable) and (variable not in names or "://" in value):
            continue
        name = _setting_of(variable, names, table)
        other = found.setdefault(name, VariableValue(value, variable))
        if other.variable != variable:
            raise ConfigError(f"{other.variable} and {variable} both set {name}; remove one of them")
    return found


def _names(table: Mapping[str, Setting]) -> dict[str, str]:
    # The table comes last, so that its settings win over names of Kafka without effect.
    return {variable_of(name): name for name in (*KNOWN_UNHONOURED, *table)}


def _setting_of(variable: str, names: Mapping[str, str], table: Mapping[str, Setting]) -> str:
    if variable in names:
        return names[variable]
    rest = variable.removeprefix(PREFIX)
    own = _listener_setting(rest.removeprefix(_LISTENER), table) if rest.startswith(_LISTENER) else None
    return own or rest.lower().replace("_", ".")


def _listener_setting(rest: str, table: Mapping[str, Setting]) -> str | None:
    """Parse LISTENER_SETTING or LISTENER_MECHANISM_SETTING. Return None if it names no setting of a listener.

    A listener's name may have underscores, so the setting is found from the end. The longest setting wins.
    """
    rows = sorted((row for row in table.values() if row.per_listener), key=lambda row: -len(row.name))
    for row in rows:
        listener = rest.removesuffix("_" + row.name.replace(".", "_").upper())
        if not listener or listener == rest:
            continue
        if row.per_mechanism:
            for mechanism in LOGIN_MODULES:
                before = listener.removesuffix("_" + mechanism.replace("-", "_"))
                if before and before != listener:
                    return f"listener.name.{before.lower()}.{mechanism.lower()}.{row.name}"
        return f"listener.name.{listener.lower()}.{row.name}"
    return None
