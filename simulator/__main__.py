"""`python -m simulator`: run seeds, show a trace, or see whether planted bugs are caught."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence

from simulator import mutate


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.planted:
        return mutate.main(options.layer, options.output, options.jobs)
    if options.plant:
        mutate.install(mutate.find(options.plant))
    return _run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulator", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--seeds", type=_range, default=range(100), metavar="A:B", help="run seeds A up to B (0:100)")
    parser.add_argument("--workload", default="greet", help="what the nodes do (greet)")
    parser.add_argument("--mode", choices=("safety", "liveness", "both"), default="both")
    parser.add_argument("--trace", action="store_true", help="print the fault plan, then every input and effect")
    parser.add_argument("--jobs", type=int, default=1, help="processes to use (1)")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--planted", action="store_true", help="plant each known bug and see that it is caught")
    parser.add_argument("--layer", default="", help="with --planted: only the bugs of this layer")
    parser.add_argument("--plant", default="", metavar="LAYER/NAME", help="run the seeds with this bug in place")
    return parser


def _range(text: str) -> range:
    first, _, last = text.partition(":")
    return range(int(first), int(last))


def _run(options: argparse.Namespace) -> int:
    # Imported only now: a planted bug must be in place before the cores are loaded.
    from simulator.runner import MODES, Outcome, run_seed, run_seeds  # noqa: PLC0415

    seeds = [options.seed] if options.seed is not None else options.seeds
    modes = MODES if options.mode == "both" else (options.mode,)
    began = time.perf_counter()
    outcomes: list[Outcome] = []
    traced = (run_seed(options.workload, seed, mode, print) for seed in seeds for mode in modes)
    for outcome in traced if options.trace else run_seeds(options.workload, seeds, modes, options.jobs):
        outcomes.append(outcome)
        _show(outcome, options.output)
        if not outcome.ok:
            print(f"seed {outcome.seed} fails: {outcome.checker}: {outcome.reason}", file=sys.stderr)
            print(f"replay: {outcome.replay()}", file=sys.stderr)
            return 1
    if options.output == "table":
        seconds = time.perf_counter() - began
        steps = sum(outcome.steps for outcome in outcomes)
        print(f"{len(outcomes)} runs, {steps} steps, all well, {seconds:.1f} s")
    return 0


def _show(outcome: object, output: str) -> None:
    from simulator.runner import Outcome  # noqa: PLC0415

    assert isinstance(outcome, Outcome)
    if output == "json":
        fields = {name: getattr(outcome, name) for name in outcome.__struct_fields__}
        print(json.dumps({**fields, "ok": outcome.ok}))
    else:
        verdict = "ok" if outcome.ok else f"FAILED by {outcome.checker}"
        print(f"{outcome.workload} {outcome.mode:8} seed {outcome.seed:6} {outcome.digest} {outcome.steps:6} {verdict}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader of the trace closed the pipe
        os._exit(0)
