"""A launch as lines of shell, the same text for every node of a replica."""

from __future__ import annotations

from truecast.serve.launch.launch_plan import LaunchPlan


def export_lines(plan: LaunchPlan) -> list[str]:
    """One ``export NAME=value`` for each variable."""
    return [setting.export() for setting in plan.environment]


def command_lines(plan: LaunchPlan, replica: int = 0) -> list[str]:
    """``sglang serve`` with one argument a line; wants ``$NODE_RANK`` and ``$HEAD`` where a replica has several nodes."""
    lines = ["sglang serve", *(f"  {' '.join(setting.words())}" for setting in plan.settings(replica))]
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]
