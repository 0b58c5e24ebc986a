"""Runs Python blocks of pages, one JSON line each, in one process: Spark is started once for all of them.

A block is told as {"page", "source"} and answered as {"out", "error"}. The blocks of a page share their names.
"""

from __future__ import annotations

import ast
import asyncio
import io
import json
import sys
import traceback
from contextlib import redirect_stdout


def run(page: str, source: str, names: dict[str, object]) -> str:
    said = io.StringIO()
    with redirect_stdout(said):
        block = compile(source, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        begun = eval(block, names)
        if asyncio.iscoroutine(begun):
            asyncio.run(begun)
    return said.getvalue()


def main() -> None:
    pages: dict[str, dict[str, object]] = {}
    for line in sys.stdin:
        told = json.loads(line)
        answer = {"out": "", "error": ""}
        try:
            answer["out"] = run(told["page"], told["source"], pages.setdefault(told["page"], {"__name__": "page"}))
        except BaseException:
            answer["error"] = traceback.format_exc()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
