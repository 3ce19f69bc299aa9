"""Users that log in by SCRAM: their credentials in the metadata, and the requests that change them (KIP-554).

`ScramUsers` is the part of the image that holds them, `UserChanges` turns AlterUserScramCredentials into records as
Kafka's controller does, with its messages. Neither holds passwords, or keys that allow a login.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from kproc.broker.cluster import records as r
from kproc.broker.security.sasl.mechanism import AuthenticatedUser
from kproc.broker.security.sasl.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    KINDS_BY_NUMBER,
    USUAL_SHAPE,
    CredentialShape,
    FoundCredential,
    ScramCredential,
    ScramKind,
    made_up,
)
from kproc.common.errors import ErrorCode, KafkaError

_SECRET_BYTES: Final = 32

Row = dict[str, Any]


class ScramUsers:
    """The SCRAM credentials of all users at one version of the metadata. Only the image changes them."""

    __slots__ = ("_by_kind", "_shapes", "_unstored_secret", "secret")

    def __init__(self) -> None:
        self._by_kind: dict[int, dict[str, ScramCredential]] = {number: {} for number in KINDS_BY_NUMBER}
        self._shapes: dict[int, CredentialShape] = {}
        self.secret = b""  # Stored with the first user (UserChanges.alter).
        self._unstored_secret = secrets.token_bytes(_SECRET_BYTES)  # In use until the first user is stored.

    def __eq__(self, other: object) -> bool:
        """Return True if the users and the secret are equal."""
        return (
            isinstance(other, ScramUsers) and self._by_kind == other._by_kind and self.secret == other.secret
        )

    __hash__ = None  # type: ignore[assignment]  # It changes.

    def __bool__(self) -> bool:
        return any(self._by_kind.values())

    def set(self, name: str, mechanism: int, credential: ScramCredential | None) -> None:
        """Set a user's credential for a mechanism. None removes it."""
        users = self._by_kind.setdefault(mechanism, {})
        if credential is None:
            users.pop(name, None)
        else:
            users[name] = credential
        self._shapes.pop(mechanism, None)

    def of(self, name: str) -> dict[int, ScramCredential]:
        """Return the SCRAM credentials of a user by the mechanism's number, or {} for an unknown user."""
        return {number: users[name] for number, users in self._by_kind.items() if name in users}

    def names(self) -> list[str]:
        """Return the names of all users, sorted."""
        return sorted({name for users in self._by_kind.values() for name in users})

    def find(self, kind: ScramKind, name: str) -> FoundCredential:
        """Return the credential of a user.

        For an unknown user return a made-up one like those of most users, because an error would reveal which users
        exist.
        """
        shape = self._shape(kind.number)
        secret = self.secret or self._unstored_secret
        # Also make up a credential for a user that exists, because otherwise the time would reveal whether the user
        # exists.
        stand_in = made_up(kind, name, secret, shape)
        found = self._by_kind[kind.number].get(name)
        return (
            FoundCredential(stand_in, None)
            if found is None
            else FoundCredential(found, AuthenticatedUser(name))
        )

    def _shape(self, mechanism: int) -> CredentialShape:
        """Return the most frequent shape (iterations, length of the salt) of the users' credentials, for made-up ones.

        USUAL_SHAPE if there is no user.
        """
        if mechanism not in self._shapes:
            # Of equally frequent shapes (iterations, length of the salt) take the largest. The choice must not depend
            # on the order of the users, because a fake credential that changes would reveal that its user does not
            # exist.
            counts = Counter(map(CredentialShape.of, self._by_kind[mechanism].values()))
            self._shapes[mechanism] = max(counts, key=lambda each: (counts[each], each), default=USUAL_SHAPE)
        return self._shapes[mechanism]

    def records(self) -> Iterator[r.Record]:
        """Yield the metadata records that rebuild the SCRAM credentials of all users, for a snapshot."""
        if self.secret:
            yield r.ScramSecretMade(self.secret)
        for mechanism, users in self._by_kind.items():
            for name, credential in users.items():
                yield r.ScramCredentialSet(name, mechanism, *credential)


class UserChanges:
    """Validates AlterUserScramCredentials against an image's users. Holds no state of its own."""

    __slots__ = ("_make_secret", "_users")

    def __init__(self, users: Callable[[], ScramUsers], make_secret: Callable[[], bytes]) -> None:
        self._users = users
        self._make_secret = make_secret

    def alter(self, body: Row) -> tuple[Row, list[r.Record]]:
        """Handle AlterUserScramCredentials. Each user succeeds or fails alone.

        `upsertions` of the body must have the keys that were derived from the salted password, not the password itself.
        """
        rows = [(row, False) for row in body["deletions"]] + [(row, True) for row in body["upsertions"]]
        times = Counter(row["name"] for row, _ in rows)
        results: list[Row] = []
        records: list[r.Record] = []
        seen: set[str] = set()
        for row, is_upsertion in rows:
            name = row["name"]
            # Skip a further row of a user, because the first row has reported the error for all of the user's rows.
            if name in seen:
                continue
            seen.add(name)
            code, message = ErrorCode.NONE, None
            try:
                if times[name] > 1:
                    raise KafkaError(
                        ErrorCode.DUPLICATE_RESOURCE,
                        "A user credential cannot be altered twice in the same request",
                    )
                records.append(self._set(row) if is_upsertion else self._delete(row))
            except KafkaError as error:
                code, message = error.code, error.message
            results.append({"user": name, "error_code": int(code), "error_message": message})
        # The secret is stored with the first user and never changes, because otherwise the made-up salt of an unknown
        # user would change at a restart, and so would reveal that the user does not exist.
        if not self._users().secret and any(isinstance(each, r.ScramCredentialSet) for each in records):
            records.insert(0, r.ScramSecretMade(self._make_secret()))
        return {"results": results}, records

    def _delete(self, row: Row) -> r.Record:
        _check_name_and_mechanism(row)
        # KIP-554: a deletion is about one mechanism, because the user can have a credential of each.
        if row["mechanism"] not in self._users().of(row["name"]):
            raise KafkaError(
                ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
            )
        return r.ScramCredentialRemoved(row["name"], row["mechanism"])

    def _set(self, row: Row) -> r.Record:
        _check_name_and_mechanism(row)
        # RFC 7677 recommends at least 4096 iterations, because fewer make stolen keys cheap to attack.
        if row["iterations"] < ITERATIONS_MIN:
            raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
        # Kafka has the same limit, because the client does this work at every login, and too much would stop its
        # logins.
        if row["iterations"] > ITERATIONS_MAX:
            raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
        return r.ScramCredentialSet(
            row["name"],
            row["mechanism"],
            row["salt"],
            row["stored_key"],
            row["server_key"],
            row["iterations"],
        )


def _check_name_and_mechanism(row: Row) -> None:
    if not row["name"]:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    # The number can be that of a newer mechanism. Nobody could log in by a credential that the broker cannot
    # check.
    if row["mechanism"] not in KINDS_BY_NUMBER:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
