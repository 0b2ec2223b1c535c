"""An existing cluster: where its registry, storage and images come from, and what is refused."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pulumi
import pytest

from review.recording import Recording, record
from tests.conftest import OFFER, write_kubeconfig
from tests.infra.recorded import changed


def on_kind(**changes: dict[str, Any]) -> Recording:
    """The local stack with sections changed, on a cluster that offers nothing, with a registry of one's own."""
    registry = {"registry": "registry.example:5000"}
    return record("local", changed("local", **{"cluster": {"context": "kind-kind"}, "image": registry, **changes}))


@pytest.mark.usefixtures("local_kubeconfig")
def test_the_local_node_offers_registry_storage_and_images() -> None:
    stack = record("local")
    assert stack.one("PersistentVolume").inputs["spec"]["hostPath"]["path"] == "/srv/trainyard"
    assert stack.one("BuildahImage").inputs["target"].startswith("registry.test:5000/trainyard/trainer:")
    assert stack.one("BuildahImage").inputs["buildArgs"] == {"BASE_IMAGE": OFFER["baseImage"], "TORCH": "cpu"}
    etcd = stack.one("StatefulSet").inputs["spec"]["template"]["spec"]["containers"][0]
    assert etcd["image"] == OFFER["etcdImage"]


@pytest.mark.usefixtures("local_kubeconfig")
def test_the_data_folder_is_the_one_that_is_used_not_the_one_that_was_offered() -> None:
    assert record("local").outputs["dataFolder"] == "/srv/trainyard"
    stack = record("local", changed("local", storage={"kind": "hostPath", "path": "/mnt/disk"}))
    assert stack.one("PersistentVolume").inputs["spec"]["hostPath"]["path"] == "/mnt/disk"
    assert stack.outputs["dataFolder"] == "/mnt/disk"


def pod_templates(stack: Recording) -> list[tuple[str, dict[str, Any]]]:
    """(name, pod template) of every resource that makes pods."""
    templates = [
        (item.name, item.inputs.get("template") or (item.inputs.get("spec") or {}).get("template"))
        for item in stack.resources
    ]
    return [(name, each) for name, each in templates if each and "containers" in each.get("spec", {})]


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("class_name", [None, "shared"])
def test_pods_are_together_where_the_volume_can_be_on_one_node_only(class_name: str | None) -> None:
    """A pod on any other node would wait for the volume for ever, and the training with it."""
    storage = {"kind": "storageClass", "className": class_name} if class_name else {}
    stack = on_kind(check={"enabled": True}, storage=storage)
    templates = [template for _, template in pod_templates(stack)]
    on_it = [one for one in templates if any("persistentVolumeClaim" in volume for volume in one["spec"]["volumes"])]
    assert len(on_it) == len(templates) - 1, "all but the rendezvous"
    for template in templates:
        found = template["spec"].get("affinity")
        assert bool(found) == (template in on_it and class_name is None)
        if found:
            [term] = found["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            assert term["topologyKey"] == "kubernetes.io/hostname"
            # Each pod matches its own term: otherwise the first one would never be scheduled.
            chosen, given = term["labelSelector"], template["metadata"]["labels"]
            assert chosen["matchLabels"].items() <= given.items()
            [without] = chosen["matchExpressions"]
            assert without["operator"] == "NotIn"
            assert given[without["key"]] not in without["values"]


def pods(stack: Recording) -> dict[str, dict[str, Any]]:
    """Name of a resource -> the specification of its pods."""
    return {name: template["spec"] for name, template in pod_templates(stack)}


@pytest.mark.usefixtures("kind")
def test_no_pod_goes_where_its_image_does_not_run() -> None:
    """BuildKit builds for linux/amd64, whatever processors the nodes have."""
    stack = on_kind(check={"enabled": True})
    assert len(pods(stack)) == 6
    for name, spec in pods(stack).items():
        assert spec["nodeSelector"] == {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}, name
    built = {"builder": "prebuilt", "ref": "ghcr.test/trainer@sha256:" + "c" * 64}
    stack = on_kind(image=built)
    for name, spec in pods(stack).items():
        assert spec["nodeSelector"] == {"kubernetes.io/os": "linux"}, f"{name}: its image may be of any processor"


@pytest.mark.usefixtures("kind")
def test_no_pod_of_others_is_evicted_but_on_a_node_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods of others have no priority class, and so the lowest priority."""

    def policies(context: str) -> dict[str, str]:
        found = on_kind(cluster={"context": context}, check={"enabled": True})
        made = [item.inputs for item in found.resources if item.kind == "PriorityClass"]
        return {each["metadata"]["name"].removeprefix("trainyard-"): each["preemptionPolicy"] for each in made}

    theirs = policies("kind-kind")
    assert theirs == dict.fromkeys(["rendezvous-waits", "training", "gpu-check-waits"], "Never")
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "own", "trainyard-local", OFFER)))
    own = policies("trainyard-local")
    assert own == {
        "rendezvous": "PreemptLowerPriority",
        "gpu-check": "PreemptLowerPriority",
        "training": "Never",
    }
    assert theirs.keys() & own.keys() == {"training"}, "Kubernetes changes no policy: another one has another name"


@pytest.mark.usefixtures("kind")
def test_the_nodes_that_train_are_chosen_by_labels_taints_and_runtime_class() -> None:
    """On AKS the taint of GPU nodes is whatever the user gave; on k3s a pod without the class sees no GPU."""
    taints = ["sku=gpu:NoSchedule", "dedicated:NoExecute", "maintenance"]
    stack = on_kind(
        storage={"kind": "storageClass", "className": "shared"},
        check={"enabled": True},
        workers={"gpus": 1, "nodeSelector": {"agentpool": "gpu"}, "tolerations": taints, "runtimeClass": "nvidia"},
    )
    training, (check,) = pods(stack)["training"], [spec for name, spec in pods(stack).items() if "gpu-check" in name]
    for spec in (training, check):
        assert spec["nodeSelector"]["agentpool"] == "gpu"
        assert spec["runtimeClassName"] == "nvidia"
        assert spec["tolerations"][:4] == [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"},
            {"key": "dedicated", "operator": "Exists", "effect": "NoExecute"},
            {"key": "maintenance", "operator": "Exists"},
        ]
    dataset = pods(stack)["dataset"]
    assert "agentpool" not in dataset.get("nodeSelector", {}), "its volume is on every node, and a GPU node costs more"
    assert "tolerations" not in dataset
    assert "runtimeClassName" not in dataset


@pytest.mark.usefixtures("kind")
def test_the_first_pod_on_a_volume_of_one_node_takes_no_node_that_the_workers_cannot_be_on() -> None:
    """A dataset Job on a node without GPUs would bind the volume there, and no worker would ever be scheduled."""
    workers = {"gpus": 1, "nodeSelector": {"agentpool": "gpu"}, "tolerations": ["sku=gpu:NoSchedule"]}
    for storage in ({}, {"kind": "storageClass"}):
        with pytest.raises(
            pulumi.RunError, match=r"storage\.className: missing; .* storage\.accessMode: ReadWriteOnce"
        ):
            on_kind(workers=workers, storage=storage)
    found = pods(on_kind(workers=workers, storage={"accessMode": "ReadWriteOnce"}))
    assert len(found) == 5
    for name, spec in found.items():
        on_volume = name != "etcd"
        assert (spec["nodeSelector"].get("agentpool") == "gpu") == on_volume, name
        assert ({"sku", "nvidia.com/gpu"} <= {each["key"] for each in spec.get("tolerations", ())}) == on_volume, name


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize(
    ("image", "name"),
    [
        ({"registry": "docker.io/you"}, "https://index.docker.io/v1/"),
        ({"builder": "prebuilt", "ref": "10.0.0.7:5000/trainer@sha256:" + "c" * 64}, "10.0.0.7:5000"),
    ],
)
def test_every_pod_pulls_from_a_private_registry(image: dict[str, str], name: str) -> None:
    stack = on_kind(image=image, check={"enabled": True}, secrets={"imagePull": "you:ghp_x:y"})
    secret = stack.one("Secret", "image-pull").inputs
    assert secret["type"] == "kubernetes.io/dockerconfigjson"
    content = json.loads(secret["stringData"]["value"][".dockerconfigjson"])
    assert content == {"auths": {name: {"auth": base64.b64encode(b"you:ghp_x:y").decode()}}}
    templates = pod_templates(stack)
    assert len(templates) == 6
    assert all(each["spec"]["imagePullSecrets"] == [{"name": "image-pull"}] for _, each in templates)


@pytest.mark.usefixtures("local_kubeconfig")
def test_an_unknown_context_lists_the_known_ones() -> None:
    with pytest.raises(pulumi.RunError, match=r"cluster\.context: 'nowhere' .* known contexts: trainyard-local"):
        record("local", changed("local", cluster={"context": "nowhere"}))


def test_no_kubeconfig_at_all_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(pulumi.RunError, match="no context is known"):
        record("local")


def test_contexts_are_merged_over_the_files_of_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write_kubeconfig(tmp_path / "first", "kind-kind", None)
    second = write_kubeconfig(tmp_path / "second", "trainyard-local", OFFER)
    monkeypatch.setenv("KUBECONFIG", f"{first}:{tmp_path / 'absent'}:{second}")
    stack = record("local")
    assert stack.one("PersistentVolume").inputs["spec"]["hostPath"]["path"] == "/srv/trainyard"
    assert stack.one("kubernetes", "cluster").inputs["kubeconfig"] == str(second)


def test_the_commands_find_the_kubeconfig_of_the_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_kubeconfig(tmp_path / "my clusters", "trainyard-local", OFFER)
    monkeypatch.setenv("HOME", str(tmp_path))
    stack = record(
        "local", {"cluster": {"kind": "existing", "context": "trainyard-local", "kubeconfig": "~/my clusters"}}
    )
    assert stack.outputs["kubeconfig"] == str(file)


@pytest.mark.parametrize("prepared", [False, True])
def test_an_input_that_is_not_on_a_volume_of_this_machine_is_refused_before_its_job_starts(
    prepared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "volume"
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "k", "trainyard-local", OFFER)))
    given = {"name": "mine", "input": ["corpus", "there.txt", "*.rst", "hf:a/b", "s3://b/x"]}
    changes = changed("local", storage={"kind": "hostPath", "path": str(folder)}, dataset=given)
    record("local", changes)  # a new volume: nothing can be uploaded before the first `up`
    (folder / "datasets" / "mine").mkdir(parents=True)
    (folder / "there.txt").touch()
    if prepared:
        (folder / "datasets/mine/index.json").touch()
        record("local", changes)
        return
    with pytest.raises(pulumi.RunError) as caught:
        record("local", changes)
    (_, line) = str(caught.value).splitlines()
    assert line.strip() == (
        "dataset.input.0: /data/corpus is not there; `trainyard upload corpus` brings yours to the shared volume"
    )


@pytest.mark.usefixtures("kind")
def test_registry_and_storage_of_a_cluster_are_refused_together() -> None:
    with pytest.raises(pulumi.RunError) as caught:
        record("local", changed("local", cluster={"context": "kind-kind"}, storage={"kind": "hostPath"}))
    registry, path = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert registry.startswith("image.registry: missing, and context 'kind-kind' offers none; set a registry")
    assert path.startswith("storage.path: missing; ")
