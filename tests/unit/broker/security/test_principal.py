"""Principal: its encoding between roles, and names that no response could hold."""

from __future__ import annotations

from kproc.broker.security.principal import ANONYMOUS, STRING_BYTES_MAX, USER, Principal
from tests.support.cases import in_one_test


@in_one_test("name", ["alice", "", "CN=a,O=b", "a\0b", "zoë", "a:b"])
@in_one_test("is_token", [False, True])
def test_principal_survives_packing(name: str, *, is_token: bool) -> None:
    principal = Principal(USER, name, is_token)
    assert Principal.unpack(principal.pack()) == principal


def test_principal_is_shown_as_type_and_name() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"


def test_principal_with_unencodable_name_has_a_problem() -> None:
    longest = "ë" * ((STRING_BYTES_MAX - len("User:")) // 2)
    assert Principal(USER, longest).problem() is None
    assert Principal(USER, longest + "xx").problem() == "a name of 32769 bytes"
    assert Principal(USER, "\ud800").problem() == "a name that is not text"
