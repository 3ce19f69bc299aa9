"""Settings of authorization. Rows of settings.py's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kproc.broker.config.values import BOOLEAN, STRING, Check, setting

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
# Kafka's authorizers before version 4. Their rules and settings are the same, so the error can name the successor.
_FORMER: Final = ("kafka.security.authorizer.AclAuthorizer", "kafka.security.auth.SimpleAclAuthorizer")


def principals_in(text: str) -> tuple[str, ...]:
    """Return the principals in a value of `super.users`.

    Semicolons separate them, because names of certificates have commas.
    """
    return tuple(part for part in (part.strip() for part in text.split(";")) if part)


def _check_class(name: str) -> str | None:
    if name in ("", STANDARD_AUTHORIZER):
        return None
    if name in _FORMER:
        return f"removed in Kafka 4; use {STANDARD_AUTHORIZER}, which has the same rules and settings"
    return f"unknown authorizer; use {STANDARD_AUTHORIZER}"


def _check_principals(text: str) -> str | None:
    nameless = [each for each in principals_in(text) if ":" not in each]
    return f"{nameless[0]!r} has no type, such as User:{nameless[0]}" if nameless else None


@dataclass(frozen=True, init=False, repr=False, eq=False)
class AuthorizerSettings:
    """Settings of the authorizer: access control lists, super users, and the decision without a matching rule."""

    authorizer_class_name: str = setting(
        STRING,
        "",
        "Authorizer. Empty: every client may do everything. org.apache.kafka.metadata.authorizer.StandardAuthorizer: "
        "clients need an ACL, which CreateAcls adds.",
        Check(f"empty, or {STANDARD_AUTHORIZER}", _check_class),
    )
    super_users: str = setting(
        STRING,
        "",
        "Principals that may do everything, separated by semicolons, such as User:admin;User:backup. Has an effect "
        "only with an authorizer.",
        Check("type:name pairs, separated by semicolons", _check_principals),
    )
    allow_everyone_if_no_acl_found: bool = setting(
        BOOLEAN,
        False,
        "Allow every client to use resources that no ACL covers. Has an effect only with an authorizer.",
    )
