"""Creation of a listener's SASL mechanisms from the settings and the users in the metadata."""

from __future__ import annotations

from typing import Any, NamedTuple

from kproc.broker.config import Config
from kproc.broker.config.sasl_settings import OAUTHBEARER, PLAIN, enabled_mechanisms, jaas_options, sasl_value
from kproc.broker.security.sasl.bearer import TokenMechanism, Validate
from kproc.broker.security.sasl.login import SaslListener
from kproc.broker.security.sasl.mechanism import Mechanism
from kproc.broker.security.sasl.plain import PlainMechanism, users_of
from kproc.broker.security.sasl.scram import KINDS, FindUser, ScramMechanism
from kproc.broker.security.sasl.unsecured_tokens import UnsecuredValidator
from kproc.common.clock import NS_PER_MS, Clock


class Surroundings(NamedTuple):
    """The config, the look-up of users and the clock that a role passes to its SASL mechanisms."""

    config: Config
    find_user: FindUser
    clock: Clock

    def monotonic_ms(self) -> int:
        """Return the monotonic time in ms.

        It decides when keys are loaded again. By the wall clock, a host that sets its clock back by a year would load
        no keys for a year.
        """
        return self.clock.now_ns() // NS_PER_MS


def make_listener(listener: str, around: Surroundings) -> SaslListener:
    """Return the SASL mechanisms that a listener offers, each with its connections.max.reauth.ms.

    listener: its name. The settings of the listener must be valid: the broker validates them at its start.
    """
    config = around.config
    names = enabled_mechanisms(config, listener)
    return SaslListener(
        {name: _mechanism(listener, name, around) for name in names},
        {name: sasl_value(config, listener, name, "connections.max.reauth.ms") for name in names},
    )


def _validator(listener: str, around: Surroundings) -> Validate:
    """Create the validator of a listener's tokens. Without a key set it accepts unsecured tokens, as configured."""

    def value(name: str) -> Any:
        return sasl_value(around.config, listener, OAUTHBEARER, f"sasl.oauthbearer.{name}")

    url = value("jwks.endpoint.url")
    if url is None:
        return UnsecuredValidator(jaas_options(around.config, listener, OAUTHBEARER), around.clock.wall_ms)
    # Imported here, because only listeners with signed tokens need these modules.
    from kproc.broker.security.sasl.key_set import KeySet
    from kproc.broker.security.sasl.signed_tokens import ExpectedClaims, SignedValidator

    expected = ExpectedClaims(
        audience=value("expected.audience"),
        issuer=value("expected.issuer"),
        skew_s=value("clock.skew.seconds"),
        name_claim=value("sub.claim.name"),
    )
    return SignedValidator(
        KeySet(url, value("jwks.endpoint.refresh.ms"), around.monotonic_ms), expected, around.clock.wall_ms
    )


def _mechanism(listener: str, name: str, around: Surroundings) -> Mechanism:
    config = around.config
    if name == PLAIN:
        return PlainMechanism(users_of(jaas_options(config, listener, name)))
    if name == OAUTHBEARER:
        return TokenMechanism(_validator(listener, around))
    return ScramMechanism(KINDS[name], around.find_user, is_strict=not config.kproc_sasl_scram_lenient_nonce)
