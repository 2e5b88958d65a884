"""Every statement on the page of the documented systems names an existing test."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

_PAGE = ROOT / "docs" / "reference" / "documented-systems.md"
_ROW = re.compile(r"^\| (?!statement |---)(.+?) \| (.*?) \| (.*?) ?\|$", re.MULTILINE)


def _problems(text: str) -> list[str]:
    """Return missing tests and wrong counts."""
    summary, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    counts = dict(
        re.findall(r"^\| \[([^\]]+)\]\(#[\w-]+\) \| (\d+) \| \d+ \|$", summary, re.MULTILINE)
    )
    problems = []
    for section in sections:
        title, _, content = section.partition("\n")
        files, _, table = content.partition("\n| statement |")
        known = set[str]()
        for path in re.findall(r"`(tests/[\w/]+\.py)`", files):
            code = (ROOT / path).read_text(encoding="utf-8")
            known.update(re.findall(r"^(?:async )?def (test_\w+)", code, re.MULTILINE))
        rows = _ROW.findall(table)
        for statement, tests, _note in rows:
            named = re.findall(r"`(test_\w+)`", tests)
            if not named or not known.issuperset(named):
                problems.append(f"{title}: {statement}: {tests}")
        if counts.get(title) != str(len(rows)):
            problems.append(f"{title}: {len(rows)} rows, the summary has {counts.get(title)}")
    total = sum(map(int, counts.values()))
    if f"\n| all | {total} | {total} |\n" not in summary:
        problems.append(f"the sum of the summary is not {total}")
    return problems


def test_every_statement_names_an_existing_test() -> None:
    assert _problems(_PAGE.read_text(encoding="utf-8")) == []


def test_missing_test_and_wrong_count_are_found() -> None:
    text = _PAGE.read_text(encoding="utf-8")
    assert len(_problems(text.replace("`test_2xx_is_", "`test_3xx_is_"))) == 2
    assert len(_problems(text.replace("(#event-bus) | 58", "(#event-bus) | 57"))) == 2
