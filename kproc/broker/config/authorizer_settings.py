"""Who may do what. Rows of settings.py's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kproc.broker.config.values import BOOLEAN, STRING, setting

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
# What Kafka had before its version 4, with the same rules and settings.
_FORMER: Final = ("kafka.security.authorizer.AclAuthorizer", "kafka.security.auth.SimpleAclAuthorizer")


def principals_in(text: str) -> tuple[str, ...]:
    """The principals in `super.users`, which are separated by semicolons: names of certificates contain commas."""
    return tuple(part for part in (part.strip() for part in text.split(";")) if part)


def _check_class(name: str) -> str | None:
    if name in ("", STANDARD_AUTHORIZER):
        return None
    if name in _FORMER:
        return f"Kafka 4 has it no more; {STANDARD_AUTHORIZER} has the same rules and settings"
    return f"only Kafka's {STANDARD_AUTHORIZER} is known here"


def _check_principals(text: str) -> str | None:
    nameless = [each for each in principals_in(text) if ":" not in each]
    return f"{nameless[0]!r} has no type, such as User:{nameless[0]}" if nameless else None


@dataclass(frozen=True, init=False, repr=False, eq=False)
class AuthorizerSettings:
    """Access control lists, and what holds without them."""

    authorizer_class_name: str = setting(
        STRING,
        "",
        "The authorizer: empty, everybody may do everything; or Kafka's StandardAuthorizer, rules by CreateAcls.",
        _check_class,
    )
    super_users: str = setting(
        STRING,
        "",
        "Who may do everything, with an authorizer: `User:admin;User:backup`, separated by semicolons.",
        _check_principals,
    )
    allow_everyone_if_no_acl_found: bool = setting(
        BOOLEAN, False, "With an authorizer: everybody may use what no rule covers at all."
    )
