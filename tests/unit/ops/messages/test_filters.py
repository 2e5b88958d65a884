"""The filter grammar, term by term."""

from __future__ import annotations

from typing import Any

import pytest

from hopback.errors import BadFilter
from hopback.message import Properties, Received
from hopback.ops.messages.dead_letter import read_dead_letter
from hopback.ops.messages.filters import PAYLOAD_BYTES, Judgement, parse_filter
from hopback.text import text_matches
from tests.unit.ops.messages.test_dead_letter import NOW, death

HEADERS: dict[str, Any] = {
    "x-death": [death("q.validator", "rejected", 3)],
    "x-tenant": "acme",
    "x-number": 7,
    "x-flag": True,
    "MT-Fault-ExceptionType": "System.TimeoutError",
    "hopback-redrives": 1,
}
DELIVERY = Received(
    "dlq",
    "",
    "key.of.it",
    b'{"order": {"id": 123, "lines": [{"sku": "a b"}], "paid": null}}',
    Properties(headers=HEADERS, type="FileUploaded.v1", message_id="m-1"),
)
LETTER = read_dead_letter(DELIVERY, 4)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "reason:rejected",
        "origin:q.validator",
        "origin:q.*",
        "type:FileUploaded*",
        "error:TimeoutError",
        "error:System.TimeoutError",
        f"group:{LETTER.fingerprint[:4]}",
        f"group:{LETTER.fingerprint}",
        "header.x-tenant:acme",
        "header.x-number:7",
        "header.x-flag:true",
        "age>1m",
        "age>=100s",
        "age<2h",
        "redrives>=1",
        "redrives:1",
        "attempts<=3",
        "size<1KB",
        "size>10",
        "payload.order.id:123",
        "payload.order.lines.0.sku:\"a b\"",
        "payload.order.paid:null",
        "id:m-1",
        f"id:{LETTER.id}",
        "key:key.*",
        "reason:rejected origin:q.validator   age>1m redrives>=1 payload.order.id:123",
    ],
)  # fmt: skip
def test_matching_filter_terms_match(text: str) -> None:
    assert parse_filter(text).matches(LETTER, DELIVERY, NOW)


@pytest.mark.parametrize(
    "text",
    [
        "reason:reject",
        "reason:REJECTED",
        "origin:validator",
        "type:*Downloaded*",
        "error:Timeout",
        "group:0000",
        f"group:{LETTER.fingerprint[:3]}",
        "header.x-tenant:other",
        "header.missing:*",
        "age>2h",
        "redrives>1",
        "size>1MB",
        "payload.order.id:124",
        "payload.order:*",
        "payload.order.lines.7.sku:*",
        "reason:rejected age>2h",
    ],
)
def test_filter_with_one_false_term_does_not_match(text: str) -> None:
    assert not parse_filter(text).matches(LETTER, DELIVERY, NOW)


@pytest.mark.parametrize(
    ("text", "term", "expected"),
    [
        ("reason:rejected colour:red", "colour:red", "one of reason"),
        ("eror:Timeout*", "eror:Timeout*", "(did you mean error:Timeout*?)"),
        ("reason", "reason", "FIELD:VALUE"),
        ("reason:", "reason:", "FIELD:VALUE"),
        ("reason>rejected", "reason>rejected", "reason:VALUE"),
        ("age>soon", "age>soon", "duration"),
        ("age>5", "age>5", "duration"),
        ("size>big", "size>big", "size like"),
        ("redrives>=many", "redrives>=many", "whole number"),
        ("redrives>=-1", "redrives>=-1", "whole number"),
        ("redrives>=²", "redrives>=²", "whole number"),
        ("header.:x", "header.:x", "one of reason"),
        ('type:"a', 'type:"a', "FIELD:VALUE"),
        ("x" * 5000, "x" * 5000, "at most 4096"),
        ("id:a " * 33, ("id:a " * 33), "at most 32"),
    ],
)
def test_invalid_filter_term_is_named_with_expected_form(
    text: str, term: str, expected: str
) -> None:
    with pytest.raises(BadFilter) as caught:
        parse_filter(text)
    assert caught.value.term == term
    assert expected in str(caught.value)


def test_content_term_does_not_match_without_content() -> None:
    """A filter states whether it needs body or headers."""
    assert parse_filter("payload.a:1").needs_content
    assert not parse_filter("reason:x").needs_content
    assert not parse_filter("payload.order.id:123").matches(LETTER, None, NOW)


def test_unknown_age_matches_no_age_term() -> None:
    dead_letter = read_dead_letter(Received("dlq", "", "k"), 1)
    assert not parse_filter("age>0s").matches(dead_letter, None, NOW)
    assert not parse_filter("age<9h").matches(dead_letter, None, NOW)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [("*", "", True), ("a*a", "a", False), ("a*b*c", "aXbYc", True), ("a*b*c", "acb", False),
     ("**", "x", True), ("a*", "ba", False), ("*a*a", "aa", True), ("*ab*ab", "ab", False)],
)  # fmt: skip
def test_wildcard_parts_do_not_overlap(pattern: str, text: str, expected: bool) -> None:
    assert text_matches(pattern, text) is expected


class _Counted(Received):
    """A delivery that counts how often its body is asked for."""

    asked = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "body":
            _Counted.asked += 1
        return super().__getattribute__(name)


def test_body_is_parsed_once_for_all_terms() -> None:
    """It is not parsed if another term fails first."""
    terms = " ".join(f"payload.order.{n}:1" for n in range(31))
    delivery = _Counted("dlq", "", "k", DELIVERY.body, DELIVERY.properties)
    for text, asked in ((f"payload.order.id:123 {terms}", 1), (f"id:other {terms}", 0)):
        _Counted.asked = 0
        assert not parse_filter(text).matches(LETTER, delivery, NOW)
        assert _Counted.asked == asked


_DEEP = b'{"a":' * 100_000
_LONG = b'{"order": {"id": 123}, "rest": "' + b"x" * PAYLOAD_BYTES + b'"}'


@pytest.mark.parametrize(
    ("body", "text", "judged"),
    [
        (_LONG, "payload.order.id:123", Judgement.NOT_LOOKED_INTO),
        (_LONG, "payload.order.id:123 reason:expired", Judgement.DIFFERS),
        (_LONG, "reason:rejected", Judgement.MATCHES),
        (_DEEP, "payload.a:1", Judgement.NOT_LOOKED_INTO),
        (b"x" * (PAYLOAD_BYTES + 1), "payload.a:1", Judgement.DIFFERS),
        (b"{no json", "payload.a:1", Judgement.DIFFERS),
    ],
)
def test_body_too_large_or_deep_is_not_judged(body: bytes, text: str, judged: Judgement) -> None:
    """Another term may still decide."""
    delivery = Received("dlq", "", "k", body, DELIVERY.properties)
    assert parse_filter(text).judge(LETTER, delivery, NOW) is judged
