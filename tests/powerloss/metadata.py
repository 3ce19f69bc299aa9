"""Users, delegation tokens, clients' quotas, rules about who may do what: a change of the metadata that was answered
outlives a power loss."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from kproc.broker.cluster.client_quotas import CLIENT_ID, PRODUCER_BYTE_RATE, Entity
from kproc.broker.cluster.delegation_tokens import REMOVE_EXPIRED, token_hmac
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.cluster.records import DelegationTokenSet
from kproc.broker.security.sasl.scram import KINDS, SCRAM_SHA_256, ScramCredential, credential_of

if TYPE_CHECKING:
    from tests.powerloss.scene import Scene

KEY = "the key of the tokens"
_ALICE = ("User", "alice")
_SHA_256 = KINDS[SCRAM_SHA_256]


class Answered:
    """What the controller has answered. What it is changing at the moment is not in here."""

    def __init__(self) -> None:
        self.tokens: dict[str, DelegationTokenSet] = {}
        self.all_ids: set[str] = set()
        self.gone: set[str] = set()
        self.quotas: dict[Entity, float | None] = {}
        # Resource names of rules: what the last answer about each said, whether there is one.
        self.rules: dict[str, bool] = {}
        self.users: dict[str, ScramCredential | None] = {}  # None: it was deleted.

    def complaint(self, image: ClusterImage) -> str | None:
        """What an image that was found on the disk lacks of it, or has too much."""
        for token_id, token in self.tokens.items():
            if image.delegation_tokens.get(token_id) != token:
                return f"token {token_id} is not as it was answered"
        if again := self.gone & image.delegation_tokens.keys():
            return f"tokens {again} were removed and are there again"
        for entity, rate in self.quotas.items():
            if image.client_quotas.of(entity).get(PRODUCER_BYTE_RATE) != rate:
                return f"the quota of {entity} is not {rate}, as was answered"
        for name, credential in self.users.items():
            if image.scram_users.of(name).get(_SHA_256.number) != credential:
                return f"the user {name} is not as it was answered"
        there = {acl.resource_name for acl in image.acls}
        for name, is_there in self.rules.items():
            if (name in there) != is_there:
                return f"the rule about {name} is {'not there' if is_there else 'there again'}"
        return None


def change(scene: Scene) -> None:
    """A token is made, renewed, taken back or expires; or a quota or a rule is set or removed."""
    known, rng = scene.ledger.metadata, scene.rng
    if rng.random() < 0.2:
        _change_user(scene, rng)
        return
    if rng.random() < 0.3:
        _change_rule(scene, rng.choice("abc"))
        return
    if rng.random() < 0.3:
        _set_quota(scene, rng)
        return
    if rng.random() < 0.4 or not known.tokens:
        body = {"requester": _ALICE, "owner": _ALICE, "renewers": [], "max_lifetime": rng.choice((-1, 1000))}
        scene.do("create_delegation_token", **body)
    elif rng.random() < 0.2:
        known.tokens.clear()
        scene.do(REMOVE_EXPIRED)
    else:
        token_id = rng.choice(sorted(known.tokens))
        del known.tokens[token_id]
        body = {
            "requester": _ALICE,
            "hmac": token_hmac(KEY.encode(), token_id),
            "period": rng.choice((-1, 5000)),
        }
        scene.do(rng.choice(("renew_delegation_token", "expire_delegation_token")), **body)
    known.gone |= known.all_ids - scene.image.delegation_tokens.keys()
    known.tokens = dict(scene.image.delegation_tokens)
    known.all_ids |= known.tokens.keys()


def _set_quota(scene: Scene, rng: random.Random) -> None:
    entity: Entity = ((CLIENT_ID, rng.choice("abc")),)
    rate = rng.choice((None, float(rng.randint(1, 1000))))
    scene.ledger.metadata.quotas.pop(entity, None)
    op = {"key": PRODUCER_BYTE_RATE, "value": rate or 0.0, "remove": rate is None}
    rows = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
    scene.do("alter_client_quotas", entries=[{"entity": rows, "ops": [op]}], validate_only=False)
    scene.ledger.metadata.quotas[entity] = rate


def _change_user(scene: Scene, rng: random.Random) -> None:
    users, name = scene.ledger.metadata.users, rng.choice("abc")
    row = {"name": name, "mechanism": _SHA_256.number}
    if users.pop(name, None) is not None:
        scene.do("alter_user_scram_credentials", deletions=[row], upsertions=[])
        users[name] = None
        return
    credential = credential_of(_SHA_256, rng.randbytes(32), rng.randbytes(8), 4096)
    scene.do("alter_user_scram_credentials", deletions=[], upsertions=[row | credential._asdict()])
    users[name] = credential


def _change_rule(scene: Scene, name: str) -> None:
    rules = scene.ledger.metadata.rules
    is_there = rules.pop(name, False)
    if is_there:
        codes = dict.fromkeys(
            ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"), 1
        )
        scene.do(
            "delete_acls",
            filters=[codes | {"resource_name_filter": name, "principal_filter": None, "host_filter": None}],
        )
    else:
        codes = {"resource_type": 2, "resource_pattern_type": 3, "operation": 3, "permission_type": 3}
        scene.do(
            "create_acls", creations=[codes | {"resource_name": name, "principal": "User:a", "host": "*"}]
        )
    rules[name] = not is_there
