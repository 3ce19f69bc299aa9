"""`kproc acl add|list|delete|check`: manages access rules (ACLs) of a broker that has an authorizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kproc.cli.acl_rules import check_access, create, delete, describe, in_words, print_rules, row_of
from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Failure,
    Format,
    OutputFormat,
    print_done,
    print_json,
    usage_error,
)
from kproc.cli.completion import complete_groups, complete_topics, complete_transactional_ids
from kproc.cli.connection import connect
from kproc.cli.consent import Consent, DryRun
from kproc.cli.lines import print_line
from kproc.cli.rights import require_on_cluster

if TYPE_CHECKING:
    from kproc.broker.security.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType

app = typer.Typer(help="Show, change and check access control rules.", no_args_is_help=True)

Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", metavar="TOPIC", help="A topic; * all.", autocompletion=complete_topics),
]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", "-g", metavar="GROUP", help="A group; * all.", autocompletion=complete_groups),
]
TransactionalIds = Annotated[
    list[str] | None,
    typer.Option(
        "--transactional-id",
        metavar="ID",
        help="A transactional id; * all.",
        autocompletion=complete_transactional_ids,
    ),
]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster: its settings, ACLs, quotas, ids.")]
Tokens = Annotated[list[str] | None, typer.Option("--token", metavar="ID", help="A delegation token.")]
Users = Annotated[
    list[str] | None,
    typer.Option("--user", metavar="TYPE:NAME", help="The user whose delegation tokens the rules are about."),
]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="Treat names as prefixes.")]
Operations = Annotated[
    list[str] | None,
    typer.Option(
        "--operation",
        metavar="OPERATION",
        help="An operation: read, write, describe ...; may be repeated.",
    ),
]
Deny = Annotated[
    bool, typer.Option("--deny", help="Deny instead of allow. Such rules win over those that allow.")
]
Principals = Annotated[
    list[str], typer.Argument(metavar="PRINCIPAL", help="alice, which is User:alice; '*' is everybody.")
]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="ADDRESS", help="Only clients at this IP address."),
]
ForProducers = Annotated[
    bool,
    typer.Option(
        "--producer", help="All that a producer of the topics and ids needs: WRITE, DESCRIBE, CREATE."
    ),
]
ForConsumers = Annotated[
    bool,
    typer.Option("--consumer", help="All that a consumer of the topics in the groups needs: READ, DESCRIBE."),
]
ForOldProducers = Annotated[
    bool, typer.Option("--idempotent", help="With --producer: IDEMPOTENT_WRITE, for Kafka before 2.8.")
]
OfPrincipal = Annotated[
    str | None,
    typer.Option("--principal", metavar="PRINCIPAL", help="Only rules that name this principal."),
]
OfPrincipals = Annotated[
    list[str] | None,
    typer.Argument(metavar="PRINCIPAL", help="Only rules that name them; '*' is User:* alone."),
]
OfHost = Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Only rules for this address.")]
Covering = Annotated[
    bool,
    typer.Option("--covering", help="Also rules of prefixes and of * that hold for the named resources."),
]
_ANY_HOST = "*"


@dataclass(frozen=True)
class NamedResources:
    """The resources that the options of a command name, one option for each resource type."""

    topic: Topics = None
    group: Groups = None
    transactional_id: TransactionalIds = None
    cluster: Cluster = False
    token: Tokens = None
    user: Users = None

    def named(self, *, with_cluster: bool = False) -> list[tuple[ResourceType, str]]:
        """Return (type, name) of each resource that the options name.

        With `with_cluster`, add the cluster if its option is not given.
        """
        from kproc.broker.security.acl import CLUSTER_NAME, ResourceType

        lists = (
            (ResourceType.TOPIC, self.topic),
            (ResourceType.GROUP, self.group),
            (ResourceType.TRANSACTIONAL_ID, self.transactional_id),
            (ResourceType.CLUSTER, [CLUSTER_NAME] if self.cluster or with_cluster else None),
            (ResourceType.DELEGATION_TOKEN, self.token),
            (ResourceType.USER, self.user),
        )
        return [(kind, name) for kind, names in lists for name in names or ()]


@dataclass(frozen=True)
class RuleRights:
    """The rights that new rules allow or deny: single operations, or all those that a producer or a consumer needs."""

    operation: Operations = None
    deny: Deny = False
    producer: ForProducers = False
    consumer: ForConsumers = False
    idempotent: ForOldProducers = False

    def validate(self, resources: NamedResources) -> None:
        """Raise a usage error for options that exclude or need each other."""
        if (self.producer or self.consumer) and self.deny:
            usage_error("--producer and --consumer are for what is allowed")
        if self.consumer and not (resources.topic and resources.group):
            usage_error("--consumer: name topics and groups")
        if self.producer and not (resources.topic or resources.transactional_id):
            usage_error("--producer: name topics, transactional ids, or both")
        if self.idempotent and not self.producer:
            usage_error("--idempotent is for --producer")
        for kind, _ in resources.named():
            if not self.operations_on(kind) and (self.producer or self.consumer):
                given = "--producer" if self.producer else "--consumer"
                usage_error(
                    f"{given} adds no rule about a {in_words(kind.name)}: leave it out, or give --operation"
                )

    @property
    def permission(self) -> Permission:
        """The permission of the rules."""
        from kproc.broker.security.acl import Permission

        return Permission.DENY if self.deny else Permission.ALLOW

    def operations_on(self, kind: ResourceType) -> dict[Operation, None]:
        """Return the operations that the rules for a resource of this type need, without duplicates."""
        from kproc.broker.security.acl import Operation, ResourceType

        wanted = dict.fromkeys(_operations(self.operation))
        if self.producer and kind in (ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID):
            wanted |= dict.fromkeys((Operation.WRITE, Operation.DESCRIBE))
        # As kafka-acls --producer does, add CREATE: with auto.create.topics.enable a producer's first Metadata request
        # creates the topic.
        if self.producer and kind == ResourceType.TOPIC:
            wanted[Operation.CREATE] = None
        # Brokers before KIP-679 (Kafka 2.8) require IDEMPOTENT_WRITE for an idempotent producer. Later brokers require
        # only WRITE on a topic.
        if self.idempotent and kind == ResourceType.CLUSTER:
            wanted[Operation.IDEMPOTENT_WRITE] = None
        if self.consumer and kind == ResourceType.TOPIC:
            wanted |= dict.fromkeys((Operation.READ, Operation.DESCRIBE))
        if self.consumer and kind == ResourceType.GROUP:
            wanted[Operation.READ] = None
        return wanted

    def rules(
        self,
        principals: list[str],
        hosts: list[str],
        resources: list[tuple[ResourceType, str, PatternType]],
    ) -> list[Acl]:
        """Return a rule for each combination of resource, principal, host, and operation on the resource."""
        from kproc.broker.security.acl import Acl

        return [
            Acl(kind, name, pattern, principal, host, operation, self.permission)
            for kind, name, pattern in resources
            for principal in principals
            for host in hosts
            for operation in self.operations_on(kind)
        ]


@app.command("add")
def add_acls(
    principals: Principals,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    resources: NamedResources = NamedResources(),
    prefixed: Prefixed = False,
    host: Hosts = None,
    rights: RuleRights = RuleRights(),
    dry_run: DryRun = False,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Add rules. Rules that exist stay as they are, and are shown as unchanged.

    There will be a rule for each combination of principal, host, operation and resource.
    """
    from kproc.broker.security.acl import ANY_NAME, Operation, PatternType

    rights.validate(resources)
    named = resources.named(with_cluster=rights.idempotent)
    hosts = [_host(each) for each in host or [ANY_NAME]]
    if not named:
        usage_error("name what the rules are about: --topic, --group, --transactional-id, --cluster ...")
    if not (rights.operation or rights.producer or rights.consumer):
        usage_error("say what is meant: --operation, --producer or --consumer")
    patterns = [(kind, name, _pattern_of(name, prefixed)) for kind, name in named]
    rules = rights.rules([_principal(who) for who in principals], hosts, patterns)
    with connect(bootstrap) as client:
        # CreateAcls reports success for rules that exist, so describe them before. Without an authorizer DescribeAcls
        # fails, as CreateAcls does.
        present = {rule for each in _filters(named, PatternType.ANY) for rule in describe(client, each)}
        if dry_run:
            # CreateAcls has no validate_only, so check only the right that it requires.
            require_on_cluster(client, Operation.ALTER)
        else:
            create(client, rules)
    result = "would add" if dry_run else "added"
    rows = [row_of(rule) | {"result": "unchanged" if rule in present else result} for rule in rules]
    print_done(rows, _DONE, output)


@app.command("list")
def list_acls(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    principal: OfPrincipal = None,
    resources: NamedResources = NamedResources(),
    covering: Covering = False,
    output: OutputFormat = Format.TABLE,
) -> None:
    """List rules, all or those of a principal or resource."""
    from kproc.broker.security.acl import PatternType

    named = resources.named()
    # KIP-290: pattern type MATCH also finds prefixed and `*` rules that apply to the resource. ANY only compares the
    # name.
    pattern = PatternType.MATCH if covering else PatternType.ANY
    filters = _filters(named, pattern, principal=principal)
    with connect(bootstrap) as client:
        found = [rule for each in filters for rule in describe(client, each)]
    rows = [row_of(rule) for rule in dict.fromkeys(found)]
    if output is Format.JSON:
        print_json(rows)
        return
    print_rules(rows)


@app.command("delete")
def delete_acls(
    principals: OfPrincipals = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    resources: NamedResources = NamedResources(),
    prefixed: Prefixed = False,
    operation: Operations = None,
    host: OfHost = None,
    deny: Annotated[bool, typer.Option("--deny", help="Only rules that deny.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All rules, if nothing else is named.")] = False,
    consent: Consent = Consent(),
    output: OutputFormat = Format.TABLE,
) -> None:
    """Delete the rules that match all options.

    Without --yes the command shows them and asks first.

    A resource's name must be equal to the name in the rule. An option that is not given matches any rule: `kproc acl
    delete alice` deletes every rule for alice.
    """
    from kproc.broker.security.acl import Operation

    named = resources.named()
    if not (principals or named or operation or host or deny or everything):
        usage_error("say which rules: a principal, a resource, an operation, --host, --deny, or --all")
    if prefixed and not named:
        usage_error("--prefixed: name a resource")
    consent.check("acl delete")
    filters = _deletion_filters(principals, named, operation, host, prefixed=prefixed, deny=deny)
    with connect(bootstrap) as client:
        if consent.needs_plan:
            # DeleteAcls has no validate_only. For a dry run or a question, describe the rules that the filters match.
            require_on_cluster(client, Operation.ALTER)
            rows = _rows([rule for each in filters for rule in describe(client, each)], "would delete")
            if not consent.obtain(rows, _DONE, output):
                return
        found = delete(client, filters)
    print_done(_rows(found, "deleted"), _DONE, output)


def _deletion_filters(
    principals: list[str] | None,
    named: Sequence[tuple[ResourceType, str]],
    operations: list[str] | None,
    host: str | None,
    *,
    prefixed: bool,
    deny: bool,
) -> list[AclFilter]:
    """Return filters that together match the rules to delete. An argument of None matches any value."""
    from kproc.broker.security.acl import Operation, PatternType, Permission, host_of_rule

    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL if named else PatternType.ANY
    # Accept a host that is not an address, too: another tool can have created such a rule, and it must be deletable.
    where = None if host is None else host_of_rule(host) or host
    everybody: list[str | None] = [None]
    return [
        each
        for who in principals or everybody
        for what in _operations(operations) or [Operation.ANY]
        for each in _filters(
            named,
            pattern,
            principal=who,
            host=where,
            operation=what,
            permission=Permission.DENY if deny else Permission.ANY,
        )
    ]


_DONE = "{result} {rule}"


def _rows(rules: Sequence[Acl], result: str) -> list[dict[str, Any]]:
    """Return a row for each rule. Raise a Failure if `rules` is empty."""
    if not rules:
        raise Failure("no access rule matches; kproc acl list shows all")
    return [row_of(rule) | {"result": result} for rule in dict.fromkeys(rules)]


@app.command("check")
def check(
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="alice, which is User:alice.")],
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="read, write, describe ...")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    resources: NamedResources = NamedResources(),
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="The client's IP address. Default: any.")
    ] = _ANY_HOST,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Show whether a principal is allowed, and by which rule. Exit code 1 if it is not."""
    named = resources.named()
    if not named:
        usage_error("name a resource: --topic, --group, --transactional-id, --cluster ...")
    (what,) = _operations([operation])
    who, host = _principal(principal), _host(host)
    with connect(bootstrap) as client:
        rows = [check_access(client, who, host, what, kind, name) for kind, name in named]
    if output is Format.JSON:
        print_json(rows)
    else:
        at = "from any host" if host == _ANY_HOST else f"from {host}"
        for row in rows:
            may = "may" if row["allowed"] else "may not"
            resource = f"{in_words(row['resource_type'])} {row['resource_name']}"
            print_line(f"{who} {may} {row['operation']} {resource} {at}: {row['why']}")
    if not all(row["allowed"] for row in rows):
        # Exit with 1 without an error message if access is denied, as `test` and `grep` do, so that scripts can test
        # the exit code.
        raise typer.Exit(1)


# -- values on the command line -------------------------------------------------------------------------


def _pattern_of(name: str, is_prefixed: bool) -> PatternType:
    """Return the pattern type of a rule: LITERAL for `*` and the cluster, even with --prefixed."""
    from kproc.broker.security.acl import ANY_NAME, CLUSTER_NAME, PatternType

    is_whole = not is_prefixed or name in (ANY_NAME, CLUSTER_NAME)
    return PatternType.LITERAL if is_whole else PatternType.PREFIXED


def _principal(text: str) -> str:
    """Return a principal in the form of rules, such as User:alice. A name without a type means a user."""
    return text if ":" in text else f"User:{text}"


def _host(text: str) -> str:
    """Return a host in the form of rules. It must be an IP address, because a rule with a host name never matches."""
    from kproc.broker.security.acl import host_of_rule

    if text == _ANY_HOST:
        return text
    return host_of_rule(text) or usage_error(f"--host {text}: expected an IP address")


def _operations(names: Sequence[str] | None) -> list[Operation]:
    from kproc.broker.security.acl import Operation

    known = {each.name: each for each in Operation if each not in (Operation.UNKNOWN, Operation.ANY)}
    wanted = [name.upper().replace("-", "_") for name in names or ()]
    for name in wanted:
        if name not in known:
            choices = ", ".join(each.lower().replace("_", "-") for each in known)
            usage_error(f"operation {name.lower()!r}: expected one of {choices}")
    return [known[name] for name in wanted]


def _filters(named: Sequence[tuple[ResourceType, str]], pattern: Any, **fields: Any) -> list[AclFilter]:
    """Return a filter for each named resource, or one filter for all resources if none is named."""
    from kproc.broker.security.acl import AclFilter, Operation, Permission, ResourceType

    principal = fields.get("principal")
    resources: Sequence[tuple[ResourceType, str | None]] = named or [(ResourceType.ANY, None)]
    return [
        AclFilter(
            kind,
            name,
            pattern,
            _principal(principal) if principal is not None else None,
            fields.get("host"),
            fields.get("operation", Operation.ANY),
            fields.get("permission", Permission.ANY),
        )
        for kind, name in resources
    ]
