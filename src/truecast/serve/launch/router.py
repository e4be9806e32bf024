"""One address for several replicas: SGLang's router, with a policy that keeps closed-loop clients balanced."""

from __future__ import annotations

from truecast.serve.launch.launch_plan import LaunchPlan
from truecast.serve.launch.scripts import heading

ROUTER = "sglang-router==0.3.2"
PORT = 8000
OPTIONS: tuple[tuple[str, str, str], ...] = (
    ("--policy", "cache_aware", "by open requests, as the two thresholds have it; power_of_two came out like random"),
    ("--balance-abs-threshold", "0", "whichever replica has fewer; 64 sends prompts that begin alike to one replica"),
    ("--balance-rel-threshold", "1", "the same, as a ratio"),
    ("--request-timeout-secs", "86400", "1800 cuts off long reasoning: 65,536 tokens at 30 a second take 2,200 s"),
    ("--worker-startup-timeout-secs", "7200", "loading takes a while"),
    ("--health-check-timeout-secs", "30", "SGLang answers within 20 s; 5 would drop a busy replica"),
)
"""Flag, value, reason, as measured in docs/launch.md: flags of ``python -m sglang_router.launch_router --help``."""


def router_words() -> list[str]:
    """The command that starts the router; the replicas' URLs follow ``--worker-urls``, its last word."""
    words = ["python3", "-m", "sglang_router.launch_router", "--host", "0.0.0.0", "--port", str(PORT)]
    return [*words, *(word for flag, value, _ in OPTIONS for word in (flag, value)), "--worker-urls"]


def router_script(plan: LaunchPlan) -> str:
    """``router.sh URL...``: one URL a replica, of its head."""
    reasons = "".join(f"# {flag} {value}: {why}.\n" for flag, value, why in OPTIONS)
    return f"""\
{heading(plan)}\
# router.sh URL...: one address, port {PORT}, for {plan.replicas} replicas, such as http://head:{plan.port} each.
{reasons}\
set -euo pipefail
if [ $# -ne {plan.replicas} ]; then
  echo "usage: router.sh URL...: the addresses of {plan.replicas} replicas" >&2
  exit 2
fi
python3 -c 'import sglang_router' 2>/dev/null || python3 -m pip install {ROUTER}
exec {" ".join(router_words())} "$@"
"""
