"""A launch as one Slurm job: a task on each node, the same command in each."""

from __future__ import annotations

from truecast.serve.launch.launch_plan import LaunchPlan
from truecast.serve.launch.scripts import heading, image

READY = "truecast: ready:"
"""How the job's log says that a replica answers; its URL follows."""


def job_script(plan: LaunchPlan) -> str:
    """``sbatch job.slurm``, from the folder that holds it and ``node.sh``.

    The job's log says when a replica is ready; each task has a log of its own. Where a task ends, all are ended.
    """
    each = plan.replicas_per_node
    return f"""\
{heading(plan, "#!/bin/bash" + chr(10))}\
# sbatch job.slurm, from this folder; it must be visible on the nodes. Add --partition, --account, --time as your cluster wants.
# With containers (pyxis): add --container-image=docker://{image(plan)} --container-mounts=... to the srun below.
#SBATCH --job-name=truecast
#SBATCH --nodes={plan.topology.nodes}
#SBATCH --ntasks-per-node={each}
#SBATCH --gpus-per-node={plan.topology.per_node}
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --output=truecast-%j.log
#SBATCH --signal=B:TERM@60
set -euo pipefail

cd "${{SLURM_SUBMIT_DIR:?submit this file with sbatch}}"
[ -f node.sh ] || {{
  echo "job.slurm: no node.sh in $PWD: submit from the folder that holds both" >&2
  exit 2
}}
hosts=() # by the addresses that Slurm itself uses
for name in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
  hosts+=("$(scontrol --oneliner show node "$name" | grep -o 'NodeAddr=[^ ]*' | cut -d= -f2)")
done
export TRUECAST_HOSTS="${{hosts[*]}}"

# Every task sees all GPUs and processors of its node, and finds its place by number.
# shellcheck disable=SC2016 # the tasks work it out
srun --kill-on-bad-exit=1 --cpu-bind=none --cpus-per-task=$((SLURM_CPUS_ON_NODE / {each})) \\
  --output="truecast-%j-node%n{"-task%t" if each > 1 else ""}.log" bash -c '
    read -ra hosts <<<"$TRUECAST_HOSTS"
    {_task(plan)}
  ' &
step=$!

answers() {{
  local code=
  {{ exec 3<>"/dev/tcp/$1/$2"; }} 2>/dev/null || return 1
  printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3
  read -r -t 20 _ code _ <&3 || true
  exec 3>&-
  [ "$code" = 200 ]
}}
waiting=()
for ((replica = 0; replica < {plan.replicas}; replica++)); do
  {_head(plan)}
  (
    until answers "$head" "$port"; do sleep 2; done
    echo "{READY} http://$head:$port/v1"
  ) &
  waiting+=($!)
done

trap 'kill -TERM "$step"' TERM INT
code=0
wait "$step" || code=$?
if kill -0 "$step" 2>/dev/null; then # the signal ended the waiting, not yet the step
  wait "$step" || code=$?
fi
kill "${{waiting[@]}}" 2>/dev/null || true
exit "$code"
"""


def _task(plan: LaunchPlan) -> str:
    if plan.replicas_per_node > 1:
        each = plan.replicas_per_node
        return (
            f"replica=$((SLURM_NODEID * {each} + SLURM_LOCALID))\n"
            '    exec bash node.sh 0 "${hosts[SLURM_NODEID]}" "$replica"'
        )
    nodes = plan.nodes_per_replica
    first = f"${{hosts[SLURM_NODEID / {nodes} * {nodes}]}}"
    return f'exec bash node.sh "$((SLURM_NODEID % {nodes}))" "{first}"'


def _head(plan: LaunchPlan) -> str:
    if plan.replicas_per_node > 1:
        each = plan.replicas_per_node
        return f"head=${{hosts[replica / {each}]}} port=$(({plan.port} + replica % {each}))"
    return f"head=${{hosts[replica * {plan.nodes_per_replica}]}} port={plan.port}"
