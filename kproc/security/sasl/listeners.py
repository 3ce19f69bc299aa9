"""What the settings of a listener and the users in the metadata make of its SASL."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kproc.config import Config
from kproc.config.sasl_settings import OAUTHBEARER, PLAIN, enabled_mechanisms, jaas_options, sasl_value
from kproc.security.sasl.bearer import TokenMechanism
from kproc.security.sasl.login import SaslListener
from kproc.security.sasl.mechanism import Mechanism
from kproc.security.sasl.plain import PlainMechanism, users_of
from kproc.security.sasl.scram import KINDS, FindUser, ScramMechanism
from kproc.security.sasl.unsecured_tokens import UnsecuredValidator


class Surroundings(NamedTuple):
    """What mechanisms need of the role that they run in."""

    config: Config
    find_user: FindUser
    now_ms: Callable[[], int]  # Since 1970.


def make_listener(listener: str, around: Surroundings) -> SaslListener:
    """The mechanisms of a listener, which the settings were checked for at the start."""
    config = around.config
    names = enabled_mechanisms(config, listener)
    return SaslListener(
        {name: _mechanism(listener, name, around) for name in names},
        {name: sasl_value(config, listener, name, "connections.max.reauth.ms") for name in names},
    )


def _mechanism(listener: str, name: str, around: Surroundings) -> Mechanism:
    config = around.config
    if name == PLAIN:
        return PlainMechanism(users_of(jaas_options(config, listener, name)))
    if name == OAUTHBEARER:
        return TokenMechanism(UnsecuredValidator(jaas_options(config, listener, name), around.now_ms))
    return ScramMechanism(KINDS[name], around.find_user, is_strict=not config.kproc_sasl_scram_lenient_nonce)
