"""What a comparison says, in sentences: never that nothing was found without what could have been found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from truecast.report.audit_paired import paired_verdict
from truecast.report.words import counted, figure, percent, points_up, upward
from truecast.report.words import points as signed_points

_POWER = "with 80% power"


def points(share: float) -> str:
    """A difference of shares in points, signed: ``-1.0 points``."""
    return f"{signed_points(share)} points"


def ends(interval: Sequence[float] | None, say: Callable[[float], str]) -> str:
    """``low to high``; empty without an interval."""
    if not interval:
        return ""
    low, high = map(say, interval)
    return f"{low.removesuffix(' points')} to {high}"


def name_of(side: Mapping[str, Any]) -> str:
    """The server's model, or the candidate's location, as recorded; the file where there is neither."""
    for described, key in (("server", "model"), ("candidate", "location")):
        found = side.get(described)
        if isinstance(found, Mapping) and isinstance(found.get(key), str) and found[key]:
            return str(found[key])
    return str(side["file"])


def eval_words(result: Mapping[str, Any]) -> Iterator[str]:
    """Sentences on two evals."""
    found, power, claim = result["difference"], result["power"], result["equivalence"]
    if found["interval"] is None:
        yield f"B less A: {points(found['mean'])}. No interval, so nothing is shown either way."
        return
    of = counted(result["problems"], "problem")
    if result["clusters"] is not None:
        of += f" in {counted(result['clusters'], 'cluster')}"
    known = f"SE {_size(found['se'])}, 95% interval {ends(found['interval'], points)}, {of}"
    if found["excludes_zero"]:
        yield f"B is {'better' if found['mean'] > 0 else 'worse'}: {points(found['mean'])} ({known})."
    else:
        yield f"Neither is shown to be better: {points(found['mean'])} ({known})."
    yield f"A difference of {_least(power['detectable'])} would have been found {_POWER}, a smaller one less often."
    yield _equivalence(
        claim, power["margin_in_reach"], f"90% interval {ends(found['tost_interval'], points)}", _least, _size
    )
    if found["between"] == 0:  # the estimate of the answers' part may come out above the whole
        yield "All of the SE can come from the answers to each problem: more answers lessen it."
    elif found["within"] is not None:
        yield (
            f"Parts of the SE, which add up as squares: {_size(found['within'])} from the answers to each problem (more answers"
            f" lessen it), {_size(found['between'])} from the choice of problems (more problems do)."
        )
    if (test := result["mcnemar"]) is not None:
        yield f"Right in A only: {test['only_a']:,}; in B only: {test['only_b']:,} (McNemar, exact: p = {figure(test['p'])})."
    if (cut := result["truncation"]) is not None:
        yield (
            f"With truncated answers right or wrong on either side the difference is {ends(cut['bounds'], points)}"
            f" (95% interval of these bounds {ends(cut['interval'], points)}); both wrong {points(cut['both_wrong'])},"
            f" both right {points(cut['both_right'])}."
        )


def bench_words(result: Mapping[str, Any]) -> Iterator[str]:
    """Sentences on two load tests."""
    for level in result["levels"]:
        for name in result["equivalence"]["figures"]:
            if name in level["figures"]:
                yield _rate(name, level["concurrency"], level["figures"][name])
    reach = [
        level["figures"][name]["margin_in_reach"]
        for level in result["levels"]
        for name in result["equivalence"]["figures"]
        if name in level["figures"]
    ]
    if reach and None not in reach:
        yield _equivalence(
            result["equivalence"], max(reach), "stream and aggregate at each concurrency", _percent_up, percent
        )
    elif result["equivalence"]["margin"] is not None:
        yield "Equivalence is not shown: it takes two runs on a side."


def audit_words(result: Mapping[str, Any]) -> Iterator[str]:
    """Sentences on two audits."""
    for side in ("a", "b"):
        if (floor := result[side]["floor"]) is not None and result[side]["kl"]["mean"] < 2 * floor["mean"]:
            yield f"{side.upper()}'s KL is within twice its noise floor: look at the excess."
    if (paired := result["paired"]) is not None:
        yield f"B: {paired_verdict(paired)}"
    if (least := result["detectable"]) is not None:
        yield f"A difference of {upward(least)} nats per token would have been found {_POWER}."


def _rate(name: str, streams: int, found: Mapping[str, Any]) -> str:
    told = f"{name} at {counted(streams, 'stream')}: B is {figure(found['ratio'])} times A"
    if found["interval"] is None:
        return f"{told}, without an interval."
    seen = f"a factor of {upward(1 + found['detectable'])} would have been found {_POWER}"
    kind = "" if found["excludes_one"] else "; not shown to differ"
    return f"{told} (95% interval {ends(found['interval'], figure)}; {seen}{kind})."


def _equivalence(
    claim: Mapping[str, Any], reach: float, of: str, up: Callable[[float], str], words: Callable[[float], str]
) -> str:
    least, could = up(claim["smallest_margin"]), up(reach)
    if claim["margin"] is None:
        return f"Equivalence is shown for margins above {least} ({of}); of two that are equal, above {could} {_POWER}."
    margin = words(claim["margin"])
    if claim["shown"]:
        return f"EQUIVALENT within {margin}: {of}; TOST at 5%, and for any margin above {least}."
    return (
        f"NOT SHOWN to be equivalent within {margin}: {of}, so only above {least}."
        f" Of two that are equal this comparison shows margins above {could} {_POWER}."
    )


def _least(share: float) -> str:
    """Of a claim about everything above: rounded up, or the claim would be false just above what is printed."""
    return f"{points_up(share)} points"


def _percent_up(share: float) -> str:
    return f"{upward(100 * share)}%"


def _size(share: float) -> str:
    number = 100 * share
    return f"{number:.1f} points" if number >= 0.1 else f"{figure(number)} points"
