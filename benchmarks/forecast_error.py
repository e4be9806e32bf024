"""Fit the constants of the speed forecast, and state its error on deployments that the fit has not seen.

    python -m benchmarks.forecast_error

Least squares of the logarithm of the time a token takes; each deployment weighs the same, however many points it has.
A deployment is a machine, an engine's version and a format. "Unseen machine" is harder: every format on it is left out.
A constant of which the remaining points say nothing stays near the value it started from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple

import numpy as np

from truecast.serve.forecast.constants import FITTED, Fitted
from truecast.serve.forecast.published import POINTS, Point
from truecast.serve.forecast.speed import point_seconds

START = Fitted(layer=48e-6, spread=0.9, message=50e-6, network=50e9)
"""Where the fit starts: 16 kernels a layer at AIConfigurator's floor of 3 microseconds, its 50 GB/s a GPU between nodes, and
guesses for the other two."""

PRIOR = 0.05
"""That a constant lies off its start by a factor of e weighs as much as a deployment that is off by 5 %. It decides only
where the points say nothing: without one on a single node, a layer's launches cannot be told from its messages."""


def residuals(points: Sequence[Point], fitted: Fitted) -> np.ndarray:
    """Logarithms of forecast over published time, one a point."""
    return np.array([np.log(point_seconds(p, fitted) * 1000 / p.milliseconds) for p in points])


def fit(points: Sequence[Point]) -> Fitted:
    """Levenberg and Marquardt on the logarithms of the constants."""
    points = [p for p in points if p.fitted]
    weights = np.array([1 / sum(q.deployment == p.deployment for q in points) ** 0.5 for p in points])

    start = np.log(astuple(START))

    def error(logs: np.ndarray) -> np.ndarray:
        return np.concatenate([weights * residuals(points, Fitted(*np.exp(logs))), PRIOR * (logs - start)])

    logs, damping = start, 1e-2
    now = error(logs)
    for _ in range(200):
        slope = np.stack([(error(logs + step) - now) / 1e-5 for step in 1e-5 * np.eye(len(logs))], axis=1)
        square = slope.T @ slope
        move = np.linalg.solve(square + damping * np.diag(np.diag(square)), -slope.T @ now)
        new = error(logs + move)
        if new @ new < now @ now:
            done = now @ now - new @ new < 1e-12
            logs, now, damping = logs + move, new, damping / 3
            if done:
                break
        else:
            damping *= 4
    return Fitted(*(float(v) for v in np.exp(logs)))


def unseen(points: Sequence[Point], group: Callable[[Point], str]) -> dict[str, list[tuple[Point, float]]]:
    """For every group of points: the relative errors when it is left out of the fit."""
    found = {}
    for name in dict.fromkeys(map(group, points)):
        inside = [p for p in points if group(p) == name]
        fitted = fit([p for p in points if group(p) != name])
        found[name] = list(zip(inside, np.expm1(residuals(inside, fitted)), strict=True))
    return found


def _table(title: str, found: dict[str, list[tuple[Point, float]]]) -> list[float]:
    print(f"\n{title}")
    sizes = []
    for name, rows in found.items():
        errors = [abs(error) for p, error in rows if p.fitted]
        sizes += errors
        print(f"  {name:34} median {np.median(errors):5.1%}  worst {max(errors):5.1%}  of {len(errors)} points")
    print(f"  {'all points':34} median {np.median(sizes):5.1%}  worst {max(sizes):5.1%}  of {len(sizes)} points")
    print(f"  {'of them within 20 %':34} {sum(size < 0.2 for size in sizes)}")
    per = [np.median([abs(e) for p, e in rows if p.fitted]) for rows in found.values()]
    print(f"  {'deployments, by their medians':34} median {np.median(per):5.1%}  worst {max(per):5.1%}  of {len(per)}")
    return sizes


def main() -> None:
    """Print constants, errors within the fit, and errors out of it."""
    fitted = fit(POINTS)
    print(f"constants: {fitted}\nas stored: {FITTED}")
    seen = {
        name: [(p, float(np.expm1(residuals([p], fitted)[0]))) for p in POINTS if p.deployment == name]
        for name in dict.fromkeys(p.deployment for p in POINTS)
    }
    for rows in seen.values():
        for p, error in rows:
            print(
                f"  {p.deployment:34} {p.streams:6.1f} streams {p.prompt:6.0f}/{p.output:<6.0f} {p.drafted} drafted "
                f"{p.milliseconds:6.2f} ms {error:+6.1%}{'' if p.fitted else '  (not fitted)'}"
            )
    _table("within the fit", seen)
    sizes = _table("each deployment unseen", unseen(POINTS, lambda p: p.deployment))
    _table("each machine unseen", unseen(POINTS, lambda p: p.machine))
    print(f"\ninterval: 80 % of errors of unseen deployments are below {np.quantile(sizes, 0.8):.1%}")


if __name__ == "__main__":
    main()
