"""``lws.yaml``: what the LeaderWorkerSet controller and Kubernetes read out of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from tests.serve.launch.conftest import DSPARK, Launch, Released
from tests.serve.launch.test_scripts import HOSTILE
from truecast.serve.launch.kubernetes import lws_yaml
from truecast.serve.launch.launch_plan import LaunchPlan
from truecast.serve.launch.plan import plan_launch
from truecast.serve.launch.scripts import node_script
from truecast.serve.topology import read_topology


def documents(plan: LaunchPlan) -> dict[str, Any]:
    found = list(yaml.safe_load_all(lws_yaml(plan)))
    assert len({d["kind"] for d in found}) == len(found)
    return {d["kind"]: d for d in found}


def test_a_group_of_pods_for_each_replica(launch: Launch) -> None:
    plan = launch("w4afp8", "gh200:16x4", replicas=2, draft=DSPARK)
    found = documents(plan)
    assert found["LeaderWorkerSet"]["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
    spec = found["LeaderWorkerSet"]["spec"]
    assert set(spec) == {"replicas", "startupPolicy", "leaderWorkerTemplate"}
    template = spec["leaderWorkerTemplate"]
    assert set(template) == {"size", "restartPolicy", "leaderTemplate", "workerTemplate"}
    assert (spec["replicas"], template["size"]) == (2, 8)
    leader, worker = (template[name]["spec"] for name in ("leaderTemplate", "workerTemplate"))
    for pod in (leader, worker):
        (container,) = pod["containers"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
        assert container["image"] == "lmsysorg/sglang:v0.5.20"
        assert pod["nodeSelector"] == {"kubernetes.io/arch": "arm64"}
        assert pod["hostNetwork"] is True
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        assert volumes["shm"]["emptyDir"] == {"medium": "Memory"}
        assert volumes["models-0"]["hostPath"]["path"] == "/data/Kimi-K3-W4AFP8"
        assert container["command"][2].endswith('bash /truecast/node.sh "$(LWS_WORKER_INDEX)" "$(LWS_LEADER_ADDRESS)"')
    head = leader["containers"][0]
    assert head["readinessProbe"]["httpGet"] == {"path": "/health", "port": plan.port}
    assert "readinessProbe" not in worker["containers"][0]
    without = {key: value for key, value in head.items() if key not in ("readinessProbe", "ports")}
    assert (without, leader["volumes"]) == (worker["containers"][0], worker["volumes"])


def test_it_holds_the_node_script(launch: Launch) -> None:
    plan = launch("mxfp4", "h200:4x8")
    assert documents(plan)["ConfigMap"]["data"]["node.sh"] == node_script(plan)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_in_their_place(name: str, released: Released) -> None:
    model = replace(released.mxfp4, location=f"/data/{name}", name=name)
    plan = plan_launch(model, read_topology("h200:4x8"), version="0.5.20")
    found = documents(plan)
    assert found["ConfigMap"]["data"]["node.sh"] == node_script(plan)
    pod = found["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    assert pod["volumes"][-1]["hostPath"]["path"] == f"/data/{name}"
    assert pod["containers"][0]["volumeMounts"][-1]["mountPath"] == f"/data/{name}"


def test_the_service_is_in_front_of_the_leader_or_the_router(launch: Launch) -> None:
    one = documents(launch("mxfp4", "h200:4x8"))
    assert one["Service"]["spec"]["selector"] == {"leaderworkerset.sigs.k8s.io/name": "truecast", "role": "leader"}
    assert one["Service"]["spec"]["ports"] == [{"port": 30000, "targetPort": 30000}]
    assert "Deployment" not in one
    two = documents(launch("mxfp4", "h200:8x8", replicas=2))
    labels = two["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert two["Service"]["spec"]["selector"] == two["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    (router,) = two["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert two["Service"]["spec"]["ports"][0]["targetPort"] == router["ports"][0]["containerPort"]
    assert router["command"][2].endswith("http://truecast-0.truecast:30000 http://truecast-1.truecast:30000")


def test_replicas_that_share_a_node_are_pods_of_part_of_its_gpus(launch: Launch) -> None:
    spec = documents(launch("mxfp4", "b300:2x16", replicas=4))["LeaderWorkerSet"]["spec"]
    pod = spec["leaderWorkerTemplate"]["leaderTemplate"]["spec"]
    assert (spec["replicas"], spec["leaderWorkerTemplate"]["size"]) == (4, 1)
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert "hostNetwork" not in pod
    assert pod["containers"][0]["command"][2].endswith(' "$(LWS_LEADER_ADDRESS)" 0')
