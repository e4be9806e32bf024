"""Whether ``truecast launch`` finds a way to serve this checkpoint on this topology at all."""

from __future__ import annotations

from truecast.serve.doctor.finding import Check, Verdict, failed, passed, skipped, unknown
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.setting import no_sglang


def _plan(ground: Ground) -> Verdict:
    error = ground.plan_error
    if error is not None:
        said = None if ground.installation is None else no_sglang(ground)
        remedy = error.fix or "give the server's arguments after --"
        if said is not None:
            return unknown(f"{said.evidence}, so no launch was worked out", said.remedy)
        return failed(f"{error.where}: {error.problem}" if error.where else error.problem, remedy)
    if ground.planned:
        return passed("the arguments looked at are those that `truecast launch` prints")
    return skipped("the arguments come from elsewhere, or --for and --topology are not both given")


CHECKS = (
    Check(
        "launch.plan",
        "there is a way to serve this checkpoint on these GPUs",
        _plan,
        ("`truecast launch`", "vllm-project/recipes#698, #934"),
    ),
)
