"""A hash of the code that a campaign's result depends on: the modules that it imports, or all if it starts nodes.

Of the tests, only the fuzz targets count, because they define what is done with an input. The code that generates
inputs does not count.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from hashlib import blake2b
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LOADED = """
import sys
from pathlib import Path
exec(sys.argv[1])
root = Path(sys.argv[2])
files = {Path(module.__file__) for module in list(sys.modules.values()) if getattr(module, "__file__", None)}
ours = (file for file in files if file.is_relative_to(root / "src") or file.name.endswith("_targets.py"))
print(*sorted(ours), sep="\\n")
"""


@cache
def fingerprint(loads: str) -> str:
    """Return the hash of every file that a fresh interpreter has loaded after this statement; if empty, of all
    files.
    """
    digest = blake2b(digest_size=8)
    for path in _loaded(loads) if loads else sorted((ROOT / "src").rglob("*.py")):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _loaded(loads: str) -> list[Path]:
    command = [sys.executable, "-c", _LOADED, loads, str(ROOT)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return [Path(line) for line in found.stdout.splitlines()]
