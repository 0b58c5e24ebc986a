"""Every file, test and page that docs/protocol/conformance.md names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/protocol/conformance.md"
DOCUMENTS = ("mesh.txt", "gossip.txt", "graph.txt", "sequence.txt", "journal.txt")
COLUMNS = 6
STATUS = re.compile(r"works|missing(: .+)?|differs: \[.+\]\(\.\./decisions/[a-z-]+\.md\)")
LINK = re.compile(r"\]\(([^)#]*)(#[^)]*)?\)")


class Row(NamedTuple):
    document: str
    mechanism: str
    section: str
    code: str
    seen: str
    test: str
    status: str


def _rows() -> list[Row]:
    rows, document = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            document = line.removeprefix("## ")
        elif document and line.startswith("| ") and not line.startswith("| mechanism"):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            assert len(cells) == COLUMNS, line
            rows.append(Row(document, *cells))
    return rows


ROWS = _rows()


@cache
def _test_names(file: Path) -> frozenset[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kinds))


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_page_has_rows_for_each_document() -> None:
    assert {row.document for row in ROWS} == set(DOCUMENTS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.document}: {row.mechanism}")
def test_row_names_existing_code_test_and_pages(row: Row) -> None:
    assert (ROOT / "src/chaplain" / row.code.strip("`")).is_file()
    file, _, name = row.test.strip("`").partition("::")
    assert name in _test_names(ROOT / file)
    assert STATUS.fullmatch(row.status), "`differs` needs a link to the decision that says why"
    for link, anchor in LINK.findall(row.seen + row.status):
        page = (PAGE.parent / link).resolve()
        assert page.is_file()
        assert not anchor or anchor in _anchors(page)


def test_mechanisms_are_named_once() -> None:
    named = [(row.document, row.mechanism) for row in ROWS]
    assert len(named) == len(set(named))
