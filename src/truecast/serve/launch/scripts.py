"""The scripts that each node runs: one that prepares it, one that starts it."""

from __future__ import annotations

import shlex

from truecast import __version__
from truecast.engines.sglang.binary import RECIPE
from truecast.serve.launch.launch_plan import LaunchPlan
from truecast.serve.launch.place import server_path
from truecast.serve.launch.setting import Setting

MARK = "# Written by truecast launch"
"""How a file of ours begins, after the line that names its interpreter."""

IMAGE = "lmsysorg/sglang:v{version}"
"""SGLang's images of a release, for x86_64 and aarch64 under one tag; CUDA 13 (its page on installation)."""

HEAD_WAIT_S = 300
"""Seconds to wait until the head's name has an address: clusters publish it when its pod or job is there."""


def heading(plan: LaunchPlan, interpreter: str = "#!/usr/bin/env bash\n") -> str:
    """First lines of every file: what it is for. No line of a name can get out of its comment."""
    name = plan.model.name.encode("unicode_escape").decode()
    return f"{interpreter}{MARK} {__version__}: {name} on {plan.topology}, SGLang {plan.version}, {plan.profile}\n"


def image(plan: LaunchPlan) -> str:
    """The container image of the plan's release of SGLang."""
    return IMAGE.format(version=plan.version)


def node_script(plan: LaunchPlan) -> str:
    """``node.sh NODE_RANK HEAD``: starts one node, the same text for all of them.

    Where replicas share a node, their number follows. ``--check`` before these asks ``truecast doctor`` instead, about
    the same arguments and variables.
    """
    usage = f"node.sh NODE_RANK HEAD{' REPLICA' if plan.replicas_per_node > 1 else ''}"
    return f"""\
{heading(plan)}\
# {usage}: starts one node. NODE_RANK counts from 0, HEAD is the address of node 0.
# node.sh --check ...: asks truecast doctor about it instead.
set -euo pipefail

check=
if [ "${{1:-}}" = --check ]; then
  check=1
  shift
fi
usage='usage: {usage}'
export NODE_RANK=${{1:?$usage}} HEAD=${{2:?$usage}}
{_replica(plan)}\
{_wait_for_head() if plan.nodes_per_replica > 1 else ""}
{_exports(plan.environment)}\
arguments=(
{_lines(plan.arguments)})
{_place(plan)}\
if [ -n "$check" ]; then
  exec python3 -m truecast doctor {_doctor(plan)} -- "${{arguments[@]}}"
fi
command -v sglang >/dev/null || {{
  echo "node.sh: no sglang on the PATH of this shell: $PATH" >&2
  exit 127
}}
exec sglang serve "${{arguments[@]}}"
"""


def setup_script(plan: LaunchPlan) -> str:
    """``setup.sh NODE_RANK HEAD``: installs what is missing, downloads, and asks ``truecast doctor`` at last.

    A replica of one node needs no arguments.
    """
    several = plan.nodes_per_replica > 1
    usage = "setup.sh NODE_RANK HEAD" if several else "setup.sh"
    return f"""\
{heading(plan)}\
# {usage}: prepares one node. Run it in SGLang's container, or in a Python environment of its own.
# The container:
#   docker run -it --gpus all --network host --ipc host --ulimit memlock=-1 -v "$PWD:$PWD" -w "$PWD" \\
#     {image(plan)} bash
# with -v for the folder of the checkpoint, and --device /dev/infiniband where there is such a network.
set -euo pipefail
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)

stop() {{
  echo "setup.sh: $*" >&2
  exit 2
}}

{'[ $# -eq 2 ] || stop "usage: setup.sh NODE_RANK HEAD: as for node.sh"' + chr(10) if several else ""}\
[ "$(uname -m)" = {plan.topology.gpu.host} ] ||
  stop "this machine is $(uname -m); {plan.topology.gpu.title} sits in {plan.topology.gpu.host} machines"

# SGLang's wheel names the one release of torch, sglang-kernel and FlashInfer that it goes with.
found=$(python3 -c 'import importlib.metadata as m
try: print(m.version("sglang"))
except m.PackageNotFoundError: pass')
if [ -z "$found" ]; then
  python3 -m pip install "sglang=={plan.version}"
elif [ "$found" != {plan.version} ]; then
  stop "this environment has SGLang $found, the launch is for {plan.version}: take {image(plan)} or another environment"
fi

# The plug-in, beside SGLang's own packages; TRUECAST may name a wheel or a folder instead.
python3 -m pip install --no-deps "${{TRUECAST:-truecast=={__version__}}}"
python3 -c 'import ml_dtypes' 2>/dev/null || python3 -m pip install --no-deps ml_dtypes

{_fetch("checkpoint", checkpoint(plan), _argument(plan, "--revision"))}\
{_fetch("draft model", plan.draft, _argument(plan, "--speculative-draft-model-revision")) if plan.draft else ""}\
{_rebuild(plan) if needs_sm90a(plan) else ""}
# The doctor has packages of its own, which may not change SGLang's.
python3 -m pip install --quiet --upgrade --target "$here/.doctor" "${{TRUECAST:-truecast=={__version__}}}"
PYTHONPATH="$here/.doctor" exec bash "$here/node.sh" --check {'"$1" "$2"' if several else "0 127.0.0.1"}{_first_replica(plan)}
"""


def needs_sm90a(plan: LaunchPlan) -> bool:
    """Do the wheels of this host lack kernels that the launch runs? Those for aarch64 have no code for sm_90a."""
    gpu = plan.topology.gpu
    return gpu.host == "aarch64" and gpu.capability == 90 and plan.model.format in ("w4afp8", "fp8")


def repository(place: str) -> tuple[str, str | None] | None:
    """Repository and revision on the Hub; None for a whole path or another URL.

    ``hf://owner/name@revision`` or ``owner/name``. A relative path looks like a repository: see :func:`checkpoint`.
    """
    name, _, revision = place.removeprefix("hf://").partition("@")
    if name.startswith("/") or name.count("/") != 1 or ":" in name:
        return None
    return name, revision or None


def checkpoint(plan: LaunchPlan) -> str:
    """The checkpoint as a whole path or a URL."""
    location = plan.model.location
    return location if "://" in location else server_path(location)


def _exports(environment: tuple[Setting, ...]) -> str:
    """Assigned first, exported then: a command inside that fails ends the script."""
    return "".join(f"{s.name}={s.words()[1]}\nexport {s.name}\n" for s in environment)


def _lines(arguments: tuple[Setting, ...]) -> str:
    return "".join(f"  {' '.join(setting.words())}\n" for setting in arguments)


def _replica(plan: LaunchPlan) -> str:
    return "replica=${3:?$usage}\n" if plan.replicas_per_node > 1 else ""


def _first_replica(plan: LaunchPlan) -> str:
    return " 0" if plan.replicas_per_node > 1 else ""


def _place(plan: LaunchPlan) -> str:
    """Port and GPUs of the replicas that share a node with the first. Of a flag given twice the later one holds."""
    if plan.replicas_per_node == 1:
        return ""
    cases = []
    for replica in range(1, plan.replicas_per_node):
        other = [s for s in plan.settings(replica) if s not in plan.arguments]
        cases.append(f"  {replica}) arguments+=({' '.join(word for s in other for word in s.words())}) ;;\n")
    return f"case $((replica % {plan.replicas_per_node})) in\n{''.join(cases)}esac\n"


def _wait_for_head() -> str:
    """Names in a cluster may take a while; a head's own name is often a loopback address in its /etc/hosts."""
    return f"""
for ((waited = 0; ; waited++)); do
  address=$(getent ahostsv4 "$HEAD" | awk '{{ print $1; exit }}') || true
  [ -z "$address" ] || break
  [ "$waited" -gt 0 ] || echo "node.sh: waiting for $HEAD to have an address" >&2
  if [ "$waited" -ge {HEAD_WAIT_S} ]; then
    echo "node.sh: no IPv4 address for $HEAD" >&2
    exit 2
  fi
  sleep 1
done
if [ "${{address#127.}}" != "$address" ] && [ "$address" != "$HEAD" ]; then
  echo "node.sh: $HEAD is $address here, which no other node reaches: give the head's address as a number" >&2
  exit 2
fi
"""


def _doctor(plan: LaunchPlan) -> str:
    words = ["--for", checkpoint(plan)]
    if plan.draft:
        found = repository(plan.draft)
        words += ["--draft", f"hf://{found[0]}" if found else plan.draft]
    return shlex.join([*words, "--topology", str(plan.topology)])


def _argument(plan: LaunchPlan, name: str) -> str | None:
    return next((a.value for a in plan.arguments if a.name == name), None)


def _fetch(what: str, location: str, revision: str | None) -> str:
    """Download from the Hub, or see that the folder is there."""
    if found := repository(location):
        name, own = found
        at = revision or own or "main"
        return f"hf download {shlex.quote(name)} --revision {shlex.quote(at)}\n"
    if "://" in location:
        return f"# The {what} is read from where it is: nothing to download.\n"
    path = shlex.quote(location)
    return f'[ -e {path} ] || stop "the {what} is not here:" {path}\n'


def _rebuild(plan: LaunchPlan) -> str:
    recipe = RECIPE.format(version=plan.version, machine=plan.topology.gpu.host, path="the file that is named below")
    lines = "".join(f"#   {line}\n" for line in recipe.splitlines())
    return f"""
# sglang-kernel's wheels for aarch64 lack code for sm_90a, without which W4AFP8 and CUTLASS FP8 trap. To rebuild:
{lines}\
python3 - <<'PYTHON'
import sys
from importlib.util import find_spec
from pathlib import Path

from truecast.engines.sglang.binary import look

for root in getattr(find_spec("sgl_kernel"), "submodule_search_locations", None) or ():
    for library in Path(root).glob("sm90/common_ops*.so"):
        finding = look(library, "{plan.version}")
        print(finding.text, file=sys.stderr)
        if finding.wrong:
            sys.exit("setup.sh: rebuild it, then run this again")
PYTHON
"""
