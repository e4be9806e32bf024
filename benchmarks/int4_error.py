"""The error of MXFP4 -> INT4 group 128: truecast against its rivals' own code, on the same values, by one metric.

    python -m benchmarks.int4_error [--json FILE]

Error: e = v - scale * code against the MXFP4 value v, in float64, from the codes and BF16 scales that would be stored.
dB: 10 log10(sum v^2 / sum e^2). Its standard error comes from resampling rows; the laws are drawn twice. Needs the
rivals (docs/benchmarks.md says how to install them) and the extra ``demo``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import int4_cases as cases
from benchmarks import int4_rules as rules
from benchmarks.convert import machine

F64 = NDArray[np.float64]
SEEDS = (0, 1)
RESAMPLES = 1000
SAMPLE = 64
"""Groups a case that brute force looks at."""

OURS = "truecast"


@dataclass(frozen=True, slots=True)
class Errors:
    """What one rule did to one matrix: sums over its rows ``[N]`` and over its groups ``[N, K/128]``."""

    squared: F64
    absolute: F64
    groups: F64


def errors(values: cases.F32, codes: NDArray[np.int8], scale: cases.F32) -> Errors:
    """Errors of stored codes and scales against the values."""
    exact = values.astype(np.float64).reshape(*scale.shape, rules.GROUP)
    error = exact - scale.astype(np.float64)[..., None] * codes.reshape(exact.shape)
    groups = (error**2).sum(axis=-1)
    return Errors(groups.sum(axis=-1), np.abs(error).sum(axis=(1, 2)), groups)


def measure(matrices: list[cases.Matrix], seed: int) -> dict[str, Any]:
    """All rules on all matrices of a case. ``seed`` picks the groups for brute force and the resampled rows."""
    rng = np.random.default_rng(seed)
    squares, magnitudes = [], []
    found: dict[str, list[Errors]] = {name: [] for name in (OURS, *rules.RIVALS)}
    groups, ours_groups = [], []
    for matrix in matrices:
        values = matrix.values()
        wide = values.astype(np.float64)
        squares.append((wide**2).sum(axis=1))
        magnitudes.append(np.abs(wide).sum(axis=1))
        found[OURS].append(errors(values, *rules.truecast_exact(matrix)))
        for name, rule in rules.RIVALS.items():
            found[name].append(errors(values, *rule(values)))
        groups.append(wide.reshape(-1, rules.GROUP))
        ours_groups.append(found[OURS][-1].groups.ravel())
    picked = rng.choice(sum(map(len, groups)), SAMPLE, replace=False)
    least = np.array([rules.brute_force(group) for group in np.concatenate(groups)[picked]])
    ours = np.concatenate(ours_groups)[picked]
    square, magnitude = np.concatenate(squares), np.concatenate(magnitudes)
    sums = {name: np.concatenate([e.squared for e in per_matrix]) for name, per_matrix in found.items()}
    draws = rng.multinomial(len(square), np.full(len(square), 1 / len(square)), RESAMPLES).astype(np.float64)
    resampled = {name: decibel(draws @ square, draws @ error) for name, error in sums.items()}
    result: dict[str, Any] = {
        "matrices": len(matrices),
        "weights": sum(m.packed.size * 2 for m in matrices),
        "rows": len(square),
        "brute_force": {
            "groups": SAMPLE,
            "db_truecast_minus_brute_force": decibel(least.sum(), ours.sum()),
            "groups_equal": int((np.abs(ours - least) <= 1e-12 * least).sum()),
        },
        "rules": {},
    }
    for name, error in sums.items():
        gain = np.array(
            [
                decibel(theirs.squared.sum(), own.squared.sum())
                for own, theirs in zip(found[OURS], found[name], strict=True)
            ]
        )
        result["rules"][name] = {
            "db": decibel(square.sum(), error.sum()),
            "db_se": resampled[name].std(ddof=1),
            "gain_db": decibel(error.sum(), sums[OURS].sum()),
            "gain_se": (resampled[OURS] - resampled[name]).std(ddof=1),
            "rms": np.sqrt(error.sum() / square.sum()),
            "mean_absolute": sum(e.absolute.sum() for e in found[name]) / magnitude.sum(),
            "won": int((gain > 0).sum()),
            "gain_least": gain.min(),
        }
    return result


def decibel(signal: Any, error: Any) -> Any:
    """Ratio of two sums of squares in dB."""
    return 10 * np.log10(signal / error)


def main() -> None:
    """Measure every case and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    work: dict[str, Callable[[], list[cases.Matrix]]] = {}
    for seed in SEEDS:
        work |= {f"{name}, seed {seed}": lambda name=name, seed=seed: cases.law(name, seed) for name in cases.LAWS}
    work |= {"SmolLM2 down_proj": cases.down_projections, "SmolLM2 experts": cases.experts}
    results = {}
    for name, matrices in work.items():
        print(f"{name} ...", file=sys.stderr)
        results[name] = measure(matrices(), seed=len(results))
    print_tables(results)
    if args.json:
        document = {"results": results, "machine": machine()}
        args.json.write_text(json.dumps(document, indent=1, default=float) + "\n")


def print_tables(results: dict[str, Any]) -> None:
    """Markdown: dB, gain of truecast over each rival, relative errors, matrices won, brute force."""
    names = list(next(iter(results.values()))["rules"])
    table("dB (standard error)", names, results, lambda r: f"{r['db']:.3f} ({r['db_se']:.3f})")
    table("dB by which truecast is better (standard error of the difference)", names[1:], results,
          lambda r: f"{r['gain_db']:.3f} ({r['gain_se']:.3f})")  # fmt: skip
    table("relative error: root mean square / mean absolute, %", names, results,
          lambda r: f"{100 * r['rms']:.2f} / {100 * r['mean_absolute']:.2f}")  # fmt: skip
    real = {case: result for case, result in results.items() if result["matrices"] > 1}
    table("matrices on which truecast is better; its least gain in dB", names[1:], real,
          lambda r: f"{r['won']}; {r['gain_least']:.3f}")  # fmt: skip
    print("\n| case | matrices | weights | rows | brute force: groups, equal | truecast minus brute force, dB |")
    print("|---|---:|---:|---:|---:|---:|")
    for case, result in results.items():
        brute = result["brute_force"]
        print(
            f"| {case} | {result['matrices']} | {result['weights']:,} | {result['rows']:,} "
            f"| {brute['groups']}, {brute['groups_equal']} | {brute['db_truecast_minus_brute_force']:.6f} |"
        )


def table(title: str, names: list[str], results: dict[str, Any], cell: Callable[[dict[str, Any]], str]) -> None:
    """One Markdown table: a row a rule, a column a case."""
    print(f"\n{title}\n\n| rule | {' | '.join(results)} |\n|---|{'---:|' * len(results)}")
    for name in names:
        print(f"| {name} | {' | '.join(cell(result['rules'][name]) for result in results.values())} |")


if __name__ == "__main__":
    main()
