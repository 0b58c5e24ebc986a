"""Feeds hostile bytes to every decoder: `python tests/fuzz/runner.py [--inputs N] [--seed S] [target …]`.

Each `*_targets.py` beside this file has functions `target_*(data: bytes)`, and may have `SEEDS`, a dictionary from such
a name to valid inputs. A target returns quietly for anything; whatever it raises is a finding. Inputs depend on nothing
but the target's name, its seeds and the number given, so a finding can be made again.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import ModuleType

HERE = Path(__file__).parent
EXTREMES = (b"\0", b"\xff", b"\x7f", b"\x80", b"\0\0", b"\xff\xff", b"\xff" * 4, b"\x80" + b"\0" * 7, b"\xff" * 8)
SIZE_MAX = 600

Target = Callable[[bytes], object]


class Finding(AssertionError):
    """A target raised. The message holds all that is needed to see it again."""


def targets() -> dict[str, tuple[Target, list[bytes]]]:
    """Every target, by `module.function`, with its seeds."""
    found: dict[str, tuple[Target, list[bytes]]] = {}
    for path in sorted(HERE.glob("*_targets.py")):
        module = _load(path)
        seeds = getattr(module, "SEEDS", {})
        names = [name for name in vars(module) if name.startswith("target_")]
        unknown = sorted(set(seeds) - set(names))
        assert not unknown, f"{path.name}: seeds for targets that are not there: {unknown}"
        for name in names:
            found[f"{path.stem.removesuffix('_targets')}.{name}"] = (getattr(module, name), list(seeds.get(name, [])))
    return found


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"fuzz_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def feed(name: str, target: Target, seeds: list[bytes], count: int, *, seed: int = 0) -> int:
    """Give the target so many inputs; returns how many it took."""
    fed = 0
    for number, data in enumerate(inputs(f"{name}/{seed}", seeds, count)):
        try:
            target(data)
        except Exception as error:
            shown = f"bytes.fromhex('{data.hex()}')"
            raise Finding(f"{name} input {number} of seed {seed}: {error!r} for {shown}") from error
        fed += 1
    return fed


def inputs(root: str, seeds: list[bytes], count: int) -> Iterator[bytes]:
    """The seeds, then all their beginnings while they last, then random and mutated bytes."""
    rng = Random(root)
    simple = [b"", *seeds, *(seed[:size] for seed in seeds for size in range(min(len(seed), SIZE_MAX)))]
    yield from simple[:count]
    for _ in range(count - len(simple)):
        yield _mutated(rng, seeds) if seeds and rng.random() < 0.8 else rng.randbytes(rng.randrange(64))


def _mutated(rng: Random, seeds: list[bytes]) -> bytes:
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randint(1, 4)):
        rng.choice(MUTATIONS)(rng, data, seeds)
    return bytes(data)


def _flip(rng: Random, data: bytearray, seeds: list[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _extreme(rng: Random, data: bytearray, seeds: list[bytes]) -> None:
    value = rng.choice(EXTREMES)
    place = rng.randrange(len(data) + 1)
    data[place : place + len(value)] = value


def _insert(rng: Random, data: bytearray, seeds: list[bytes]) -> None:
    place = rng.randrange(len(data) + 1)
    data[place:place] = rng.randbytes(rng.randint(1, 8))


def _delete(rng: Random, data: bytearray, seeds: list[bytes]) -> None:
    place = rng.randrange(len(data) + 1)
    del data[place : place + rng.randint(1, 8)]


def _truncate(rng: Random, data: bytearray, seeds: list[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _repeat(rng: Random, data: bytearray, seeds: list[bytes]) -> None:
    place = rng.randrange(len(data) + 1)
    data[place:place] = data[place : place + rng.randint(1, 16)]


def _splice(rng: Random, data: bytearray, seeds: list[bytes]) -> None:
    other = rng.choice(seeds)
    data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other) + 1) :]


MUTATIONS = (_flip, _extreme, _insert, _delete, _truncate, _repeat, _splice)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="*", help="all of them, unless named")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name, (target, seeds) in targets().items():
        if not options.target or name in options.target:
            began = time.monotonic()
            fed = feed(name, target, seeds, options.inputs, seed=options.seed)
            print(f"{name}: {fed} inputs, {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
