from __future__ import annotations

import pytest

from kproc.broker.cluster.topic_names import check_name, check_new_name, collision_key
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.cases import in_one_test


@in_one_test("name", ["a", "A.b_c-9", "...", "-", "_", "x" * 249, "__consumer_offsets"])
def test_kafkas_names_are_accepted(name):
    check_name(name)
    check_new_name(name, {})


@in_one_test(
    ("name", "words"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("x" * 250, "is longer than the max allowed length 249"),
        ("a b", "contains one or more characters other than ASCII alphanumerics"),
        ("é", "contains one or more characters"),
        ("a/b", "contains one or more characters"),
        ("a\n", "contains one or more characters"),
        ("a:b", "contains one or more characters"),
    ],
)
def test_invalid_topic_name_is_rejected_in_kafkas_words(name, words):
    with pytest.raises(KafkaError, match="Topic name is invalid: ") as caught:
        check_name(name)
    assert caught.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert words in str(caught.value.message)


@pytest.mark.parametrize(("new", "old"), [("a_b", "a.b"), ("a.b", "a_b"), ("a._b", "a__b")])
def test_dot_and_underscore_may_not_be_the_only_difference(new, old):
    with pytest.raises(KafkaError) as caught:
        check_new_name(new, {collision_key(old): old})
    assert caught.value.message == f"Topic '{new}' collides with existing topic: {old}"


def test_the_metadata_logs_own_directory_is_not_a_topic():
    with pytest.raises(KafkaError) as caught:
        check_new_name("__cluster_metadata", {})
    assert caught.value.code == ErrorCode.INVALID_REQUEST
    assert caught.value.message == "Creation of internal topic __cluster_metadata is prohibited."
