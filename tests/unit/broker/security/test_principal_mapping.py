"""ssl.principal.mapping.rules: Kafka's own cases (SslPrincipalMapperTest), and what else Java's expressions do."""

from __future__ import annotations

import pytest

from kproc.broker.security.principal_mapping import NoMatchingRule, PrincipalMapper, problem_with
from tests.support.cases import in_one_test

ORG = "CN=Duke,OU=JavaSoft,O=Sun Microsystems,C=US"


@in_one_test(
    "rules",
    [
        "DEFAULT",
        "",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT",
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/",
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L",
        "RULE:^cn=(.?),ou=(.?),dc=(.?),dc=(.?)$/$1@$2/U",
        "RULE:^CN=([^,ADEFLTU,]+)(,.*|$)/$1/",
        "RULE:^CN=([^,DEFAULT,]+)(,.*|$)/$1/",
        f"RULE:^CN=(.*?)$/${'1' * 5_000}/",
    ],
)
def test_valid_rules(rules: str) -> None:
    assert problem_with(rules) is None


@in_one_test(
    "rules",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT/U",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
        "RULE:(/x/",
        "RULE:(a)/${b}/",
        "RULE:(a)/$x/",
    ],
)
def test_rules_that_are_none(rules: str) -> None:
    assert problem_with(rules) is not None


@in_one_test(
    ("subject", "name"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "Duke@SME"),
        ("cn=duke,ou=SME,dc=mycp,dc=com", "DUKE@SME"),
        ("CN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_the_first_rule_that_matches_names_the_principal(subject: str, name: str) -> None:
    rules = ", ".join(
        [
            "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L",
            "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
            "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U",
            "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
            "DEFAULT",
        ]
    )
    if name == "Duke@SME":
        rules = rules.replace("$1@$2/L", "$1@$2/", 1)
    assert PrincipalMapper(rules).name_of(subject) == name


@in_one_test(
    ("rule", "name"),
    [
        (r"RULE:^CN=(\w+),.*$/\$1 is $1/", "$1 is Duke"),
        ("RULE:^CN=(?<who>\\w+),.*$/${who}/L", "duke"),
        ("RULE:^CN=(\\w+),.*$/$12/", "Duke2"),
        ("RULE:^CN=(\\w+),.*$/$1$9/", "Duke$9"),
        ("RULE:^CN=(\\w++),.*$/a\\/b/", "a/b"),
        ("RULE:.*/x/", "xx"),  # Java replaces the empty match at the end, too.
        (r"RULE:^CN=(\w+),OU=(\w+),.*$/$2\,$1/", "JavaSoft,Duke"),
    ],
)
def test_replacements_are_javas(rule: str, name: str) -> None:
    assert PrincipalMapper(rule).name_of(ORG) == name


def test_without_a_rule_that_matches_there_is_no_principal() -> None:
    with pytest.raises(NoMatchingRule, match="applies to CN=Duke"):
        PrincipalMapper("RULE:^OU=.*$/x/").name_of(ORG)
