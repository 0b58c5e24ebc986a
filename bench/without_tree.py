"""Runs the command line with execution that adds no leaves to the tree: the other side of `proofs.py`."""

from __future__ import annotations

from chaplain.cli.main import main
from proofs import no_tree

if __name__ == "__main__":
    with no_tree():
        main()
