"""A launch as a Kubernetes LeaderWorkerSet: a group of pods for each replica, the same command in each."""

from __future__ import annotations

import json
import posixpath

from truecast import __version__
from truecast.serve.launch.launch_plan import LaunchPlan
from truecast.serve.launch.router import PORT, ROUTER, router_words
from truecast.serve.launch.scripts import checkpoint, heading, image, node_script, repository

NAME = "truecast"
_ROUTER_IMAGE = "python:3.12-slim"


def lws_yaml(plan: LaunchPlan) -> str:
    """``kubectl apply -f lws.yaml``: ConfigMap with ``node.sh``, LeaderWorkerSet, Service; a router for several replicas.

    Fields as in the v1 schema of leaderworkerset.x-k8s.io, whose controller gives pods ``LWS_LEADER_ADDRESS`` and
    ``LWS_WORKER_INDEX`` (from its release 0.6 on).
    """
    documents = [_script(plan), _set(plan), _service(plan)]
    if plan.replicas > 1:
        documents.append(_router(plan))
    notes = """\
# kubectl apply -f lws.yaml, where the LeaderWorkerSet controller (0.6 or newer) is installed. Before that:
# - volumes "models" and "cache" are folders of the nodes; put your claim in their place;
# - a private or gated repository needs a secret: kubectl create secret generic hf-token --from-literal=token=...;
# - InfiniBand or RoCE is a resource of your device plug-in, such as rdma/ib: "1": add it under limits.
"""
    return f"{heading(plan, '')}{notes}" + "".join(f"---\n{document}" for document in documents)


def _script(plan: LaunchPlan) -> str:
    lines = "".join(f"    {line}\n" if line else "\n" for line in node_script(plan).splitlines())
    return f"""\
apiVersion: v1
kind: ConfigMap
metadata:
  name: {NAME}-node
data:
  node.sh: |
{lines}"""


def _set(plan: LaunchPlan) -> str:
    return f"""\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: {NAME}
spec:
  replicas: {plan.replicas}
  startupPolicy: LeaderCreated
  leaderWorkerTemplate:
    size: {plan.nodes_per_replica}
    restartPolicy: RecreateGroupOnPodRestart
    leaderTemplate:
      metadata:
        labels:
          role: leader
{_indented(_pod(plan, leader=True), 6)}\
    workerTemplate:
{_indented(_pod(plan, leader=False), 6)}"""


def _pod(plan: LaunchPlan, *, leader: bool) -> str:
    whole = plan.replicas_per_node == 1
    gpus = plan.topology.per_node if whole else plan.tp
    package = f"${{TRUECAST:-truecast=={__version__}}}"
    start = f'python3 -m pip install --no-deps "{package}" && exec bash /truecast/node.sh'
    place = ' "$(LWS_WORKER_INDEX)" "$(LWS_LEADER_ADDRESS)"' + ("" if whole else " 0")
    probe = f"""\
    ports:
    - containerPort: {plan.port}
    readinessProbe:
      httpGet:
        path: /health
        port: {plan.port}
      periodSeconds: 10
      timeoutSeconds: 25
      failureThreshold: 6
"""
    return f"""\
spec:
{_network(plan)}\
  terminationGracePeriodSeconds: 60
  nodeSelector:
    kubernetes.io/arch: {"arm64" if plan.topology.gpu.host == "aarch64" else "amd64"}
  containers:
  - name: sglang
    image: {image(plan)}
    command:
    - bash
    - -c
    - {json.dumps(start + place)}
    env:
    - name: HF_TOKEN
      valueFrom:
        secretKeyRef:
          name: hf-token
          key: token
          optional: true
{probe if leader else ""}\
    resources:
      limits:
        nvidia.com/gpu: "{gpus}"
    securityContext:
      capabilities:
        add:
        - IPC_LOCK
    volumeMounts:
    - name: node
      mountPath: /truecast
    - name: shm
      mountPath: /dev/shm
    - name: cache
      mountPath: /root/.cache
{_mount(plan)}\
  volumes:
  - name: node
    configMap:
      name: {NAME}-node
  - name: shm
    emptyDir:
      medium: Memory
  - name: cache
    hostPath:
      path: /var/cache/truecast
      type: DirectoryOrCreate
{_volume(plan)}"""


def _network(plan: LaunchPlan) -> str:
    """Nodes that talk to each other do so over the host's own network, where RDMA is."""
    if plan.nodes_per_replica == 1:
        return ""
    return "  hostNetwork: true\n  dnsPolicy: ClusterFirstWithHostNet\n"


def _mounted(plan: LaunchPlan) -> list[str]:
    """Folders of a checkpoint and a draft model that lie on the nodes."""
    locations = [checkpoint(plan), *([plan.draft] if plan.draft else [])]
    return sorted(
        {posixpath.normpath(where) for where in locations if repository(where) is None and "://" not in where}
    )


def _mount(plan: LaunchPlan) -> str:
    return "".join(
        f"    - name: models-{number}\n      mountPath: {json.dumps(path, ensure_ascii=False)}\n      readOnly: true\n"
        for number, path in enumerate(_mounted(plan))
    )


def _volume(plan: LaunchPlan) -> str:
    return "".join(
        f"  - name: models-{number}\n    hostPath:\n      path: {json.dumps(path, ensure_ascii=False)}\n      type: Directory\n"
        for number, path in enumerate(_mounted(plan))
    )


def _service(plan: LaunchPlan) -> str:
    """In front of the router where there is one, else of the leader."""
    selector = (
        "app: truecast-router" if plan.replicas > 1 else f"leaderworkerset.sigs.k8s.io/name: {NAME}\n    role: leader"
    )
    return f"""\
apiVersion: v1
kind: Service
metadata:
  name: {NAME}-api
spec:
  selector:
    {selector}
  ports:
  - port: {plan.port}
    targetPort: {PORT if plan.replicas > 1 else plan.port}
"""


def _router(plan: LaunchPlan) -> str:
    """Leaders have names of their own: ``NAME-REPLICA`` in the domain of the set's headless service ``NAME``."""
    urls = " ".join(f"http://{NAME}-{replica}.{NAME}:{plan.port}" for replica in range(plan.replicas))
    start = f"python3 -m pip install {ROUTER} && exec {' '.join(router_words())} {urls}"
    return f"""\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {NAME}-router
spec:
  replicas: 1
  selector:
    matchLabels:
      app: {NAME}-router
  template:
    metadata:
      labels:
        app: {NAME}-router
    spec:
      containers:
      - name: router
        image: {_ROUTER_IMAGE}
        command:
        - sh
        - -c
        - {json.dumps(start)}
        ports:
        - containerPort: {PORT}
        readinessProbe:
          httpGet:
            path: /health
            port: {PORT}
"""


def _indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in text.splitlines())
