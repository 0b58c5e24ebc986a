"""Feeds hostile bytes to every decoder: `python tests/fuzz/runner.py [--inputs N] [--seed S] [target …]`.

Each `*_targets.py` beside this file has functions `target_*(data: bytes)`, and may have `SEEDS`, a dictionary from such
a name to valid inputs. A target returns quietly for anything; whatever it raises is a finding, and so is an input that
keeps it busy for `BUSY_S`. Inputs depend on nothing but the target's name, its seeds and the number given, so a finding
can be made again.

A target that needs a whole core is made by a function `make_target_*()`, which is called anew every `KEPT_FOR` inputs:
what one input did to the core is still there for the next ones. A finding says with which input such a core began;
`--first` with its number shows it again.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from types import FrameType, ModuleType

HERE = Path(__file__).parent
EXTREMES = (b"\0", b"\xff", b"\x7f", b"\x80", b"\0\0", b"\xff\xff", b"\xff" * 4, b"\x80" + b"\0" * 7, b"\xff" * 8)
SIZE_MAX = 600
KEPT_FOR = 20
BUSY_S = 5.0
"""Of processor time, for one input: a node would stand still for so long. What else the machine does is no matter."""

Target = Callable[[bytes], object]
Make = Callable[[], Target]


class Finding(AssertionError):
    """A target raised. The message holds all that is needed to see it again."""


class Busy(Exception):
    """One input kept a target busy for too long."""


def layers() -> list[str]:
    """What there are targets of."""
    return sorted(path.stem.removesuffix("_targets") for path in HERE.glob("*_targets.py"))


def targets(layer: str = "*") -> dict[str, tuple[Make, list[bytes]]]:
    """What makes every target, of one layer or of all, by `layer.function`, with its seeds."""
    found: dict[str, tuple[Make, list[bytes]]] = {}
    for path in sorted(HERE.glob(f"{layer}_targets.py")):
        module = _load(path)
        seeds = getattr(module, "SEEDS", {})
        makes = dict(_makes(module))
        unknown = sorted(set(seeds) - set(makes))
        assert not unknown, f"{path.name}: seeds for targets that are not there: {unknown}"
        for name, make in makes.items():
            found[f"{path.stem.removesuffix('_targets')}.{name}"] = (make, list(seeds.get(name, [])))
    return found


def _makes(module: ModuleType) -> Iterator[tuple[str, Make]]:
    for name, function in vars(module).items():
        if name.startswith("target_"):
            yield name, partial(_itself, function)
        elif name.startswith("make_target_"):
            yield name.removeprefix("make_"), function


def _itself(target: Target) -> Target:
    """What makes a target that keeps nothing."""
    return target


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"fuzz_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def feed(name: str, make: Make, seeds: list[bytes], count: int, *, seed: int = 0, first: int = 0) -> int:
    """Give the target so many inputs, less those before the first; returns how many it took."""
    fed = 0
    signal.signal(signal.SIGVTALRM, _interrupt)
    for number, data in enumerate(inputs(f"{name}/{seed}", seeds, count)):
        if number < first:
            continue
        if number % KEPT_FOR == 0 or number == first:
            began, target = number, make()
        signal.setitimer(signal.ITIMER_VIRTUAL, BUSY_S)
        try:
            target(data)
        except Exception as error:
            shown = f"bytes.fromhex('{data.hex()}')"
            raise Finding(f"{name} input {number} of seed {seed}, first {began}: {error!r} for {shown}") from error
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        fed += 1
    return fed


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise Busy(f"busy for {BUSY_S:g} s")


def inputs(root: str, seeds: list[bytes], count: int) -> Iterator[bytes]:
    """The seeds, then all their beginnings while they last, then random and mutated bytes."""
    rng = Random(root)
    simple = [b"", *seeds, *(seed[:size] for seed in seeds for size in range(min(len(seed), SIZE_MAX)))]
    yield from simple[:count]
    for _ in range(count - len(simple)):
        yield _mutated(rng, seeds) if seeds and rng.random() < 0.8 else rng.randbytes(int(rng.random() * 64))


# What makes an input costs as much as most decoders: `int(rng.random() * n)` is four times as fast as `randrange(n)`.


def _mutated(rng: Random, seeds: list[bytes]) -> bytes:
    data = bytearray(seeds[int(rng.random() * len(seeds))])
    for _ in range(1 + int(rng.random() * 4)):
        MUTATIONS[int(rng.random() * len(MUTATIONS))](rng, data, seeds)
    return bytes(data)


def _flip(rng: Random, data: bytearray, seeds: list[bytes]) -> None:
    if data:
        data[int(rng.random() * len(data))] ^= 1 << int(rng.random() * 8)


def _extreme(rng: Random, data: bytearray, seeds: list[bytes]) -> None:
    value = EXTREMES[int(rng.random() * len(EXTREMES))]
    place = int(rng.random() * (len(data) + 1))
    if rng.random() < 0.5:  # numbers on disk stand at multiples of their size
        place -= place % len(value)
    data[place : place + len(value)] = value


def _insert(rng: Random, data: bytearray, seeds: list[bytes]) -> None:
    place = int(rng.random() * (len(data) + 1))
    data[place:place] = rng.randbytes(1 + int(rng.random() * 8))


def _delete(rng: Random, data: bytearray, seeds: list[bytes]) -> None:
    place = int(rng.random() * (len(data) + 1))
    del data[place : place + 1 + int(rng.random() * 8)]


def _truncate(rng: Random, data: bytearray, seeds: list[bytes]) -> None:
    del data[int(rng.random() * (len(data) + 1)) :]


def _repeat(rng: Random, data: bytearray, seeds: list[bytes]) -> None:
    place = int(rng.random() * (len(data) + 1))
    data[place:place] = data[place : place + 1 + int(rng.random() * 16)]


def _splice(rng: Random, data: bytearray, seeds: list[bytes]) -> None:
    other = seeds[int(rng.random() * len(seeds))]
    data[int(rng.random() * (len(data) + 1)) :] = other[int(rng.random() * (len(other) + 1)) :]


MUTATIONS = (_flip, _extreme, _insert, _delete, _truncate, _repeat, _splice)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="*", help="all of them, unless named")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="begin with this input, as a finding says")
    options = parser.parse_args()
    for name, (make, seeds) in targets().items():
        if not options.target or name in options.target:
            began = time.monotonic()
            fed = feed(name, make, seeds, options.inputs, seed=options.seed, first=options.first)
            print(f"{name}: {fed} inputs, {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
