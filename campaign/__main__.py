"""Run the campaign: ``python -m campaign --minutes 20 --seed 0 --backend numpy``."""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from contextlib import suppress

os.environ.setdefault("OMP_NUM_THREADS", "1")  # arrays are small: threads would wait for each other

from campaign.backends import backend as library_named
from campaign.backends import shared_compilation
from campaign.trial import Outcome, run
from campaign.workers import KINDS, work, work_together

BACKENDS = ["numpy", "numba", "strict", "torch", "jax"]
STATUSES = {
    "problems": "problems",
    "passed": "passed",
    "undecided": "undecided",
    "refused": "refused with a clear error",
    "unconverged": "not converged, and says so",
    "slow": "slow",
    "failed": "failed",
}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long to go on")
    parser.add_argument("--problems", type=int, help="how many problems at most")
    parser.add_argument("--seed", type=int, default=0, help="a million problems for each")
    parser.add_argument("--backend", choices=BACKENDS, default="numpy")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="can be repeated")
    parser.add_argument("--dtype", choices=["float32", "float64"], help="both if absent")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the problems")
    parser.add_argument("--repeat", type=int, metavar="SEED", help="one problem, all printed")
    return parser.parse_args(arguments)


def report(outcome: Outcome, backend: str, dtype: str | None) -> None:
    """Print what is wrong, and how to see it again."""
    for label, message in outcome.failures:
        print(f"\nFAILED {outcome.kind}: {label}\n  {message.strip()}")
    print(
        f"  seed {outcome.seed}; repeat: python -m campaign --backend {backend} "
        f"--kind {outcome.kind} --repeat {outcome.seed}" + (f" --dtype {dtype}" if dtype else ""),
        flush=True,
    )


def summary(outcomes: list[Outcome]) -> str:
    """A table: kinds by what became of their problems."""
    kinds = list(dict.fromkeys(outcome.kind for outcome in outcomes))
    counts = {kind: Counter(o.status for o in outcomes if o.kind == kind) for kind in kinds}
    total = Counter(o.status for o in outcomes)
    width = max(map(len, STATUSES.values()))
    lines = [" " * width + "".join(f"{kind:>13}" for kind in [*kinds, "all"])]
    for status, words in STATUSES.items():
        row = [*(counts[kind] for kind in kinds), total]
        numbers = [c.total() if status == "problems" else c[status] for c in row]
        lines.append(f"{words:<{width}}" + "".join(f"{n:>13}" for n in numbers))
    return "\n".join(lines)


def details(outcomes: list[Outcome], backend: str) -> str:
    """Reasons of refusals, slow problems, and how often each failure occurred."""
    lines = []
    reasons = Counter(o.refused.split(":")[0][:70] for o in outcomes if o.status == "refused")
    shortened: Counter[str] = Counter()
    for reason, count in reasons.items():
        shortened[" ".join(w for w in reason.split() if not any(c.isdigit() for c in w))] += count
    lines += [f"  refused {count:>5}  {reason}" for reason, count in shortened.most_common(20)]
    slow = sorted((o for o in outcomes if o.slow), key=lambda o: -o.seconds)
    lines += [
        f"  slow   {o.seconds:5.1f} s  {o.slow}: --backend {backend} --kind {o.kind} "
        f"--repeat {o.seed}"
        for o in slow[:20]
    ]
    labels = Counter((o.kind, label) for o in outcomes for label, _ in o.failures)
    lines += [f"  failed  {n:>5}  {kind}: {label}" for (kind, label), n in labels.most_common()]
    return "\n".join(lines)


def repeat(kinds: list[str], seed: int, backend: str, dtype: str | None) -> int:
    """Run one problem of each kind named, and print all that is known of it."""
    library, failed = library_named(backend), False
    for kind in kinds:
        outcome = run(kind, seed, library, KINDS[kind], dtype)
        print("\n".join(outcome.notes))
        print(f"\n{kind} {seed}: {outcome.status} in {outcome.seconds:.2f} s of CPU")
        print(outcome.refused or outcome.undecided or outcome.slow)
        if outcome.failed:
            report(outcome, backend, dtype)
            failed = True
    return int(failed)


def main(arguments: list[str] | None = None) -> int:
    """Run problems until the time or their number is up, or repeat one; 1 if any failed."""
    given = parse(arguments)
    if given.repeat is not None:
        return repeat(given.kind or list(KINDS), given.repeat, given.backend, given.dtype)
    with shared_compilation(given.backend):
        return run_many(given)


def run_many(given: argparse.Namespace) -> int:
    """Run problems, report failures and print the summary; 1 if any failed."""
    outcomes: list[Outcome] = []
    begin = time.monotonic()
    with suppress(KeyboardInterrupt):  # the summary is that of the problems so far
        collect(given, outcomes)
    outcomes.sort(key=lambda outcome: outcome.seed)
    print(f"\n{given.backend}, seed {given.seed}: {time.monotonic() - begin:.0f} s")
    print(summary(outcomes))
    print(details(outcomes, given.backend))
    return int(any(outcome.failed for outcome in outcomes))


def collect(given: argparse.Namespace, outcomes: list[Outcome]) -> None:
    """Run problems, add what became of them, report failures and print the progress."""
    begin = last = time.monotonic()
    line = sys.stderr.isatty()
    for outcome in work(given) if given.workers == 1 else work_together(given):
        outcomes.append(outcome)
        if outcome.failed:
            report(outcome, given.backend, given.dtype)
        else:
            outcome.notes.clear()  # arrays as text: thousands of problems would fill the memory
        if line or time.monotonic() - last > 30:
            last = time.monotonic()
            failed = sum(o.failed for o in outcomes)
            minutes = (last - begin) / 60
            text = f"{minutes:5.1f} of {given.minutes:g} min, {len(outcomes)} problems"
            print(f"{text}, {failed} failed", end="\r" if line else "\n", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
