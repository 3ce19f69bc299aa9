"""DescribeAcls, CreateAcls and DeleteAcls of a broker without an authorizer."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.acls import ANY_ACL
from tests.support.raw import RawClient

# -- security, as there is none ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 4))
def test_acl_apis_without_authorizer_answer_security_disabled(client: RawClient, version: int) -> None:
    acl = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    described = client.call(ApiKey.DESCRIBE_ACLS, version, ANY_ACL)
    assert (described["error_code"], described["error_message"], described["resources"]) == (
        ErrorCode.SECURITY_DISABLED,
        "No Authorizer is configured on the broker",
        [],
    )
    created = client.call(ApiKey.CREATE_ACLS, version, {"creations": [acl, acl]})["results"]
    deleted = client.call(ApiKey.DELETE_ACLS, version, {"filters": [ANY_ACL]})["filter_results"]
    assert [(row["error_code"], row["error_message"]) for row in created + deleted] == [
        (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    ] * 3
