"""What a cloud adds to a resource once it exists: ids, addresses, e-mails, in the provider's own form.

Used where no cloud is: by the recording (review/recording.py) and by the stand-in provider plugin of the tests, so that
both see the same values. Only outputs that the program reads are here; the others a program cannot have used.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from review import computed_aws, replaces

Inputs = Mapping[str, Any]
#: (outputs beside the inputs, id)
Made = tuple[dict[str, Any], str]

DIGEST = "sha256:" + "0" * 64
#: Ends what the cloud will only know when it has made a resource anew.
ANEW = "-anew"
#: Looks like a certificate authority, and is none.
CERTIFICATE = base64.b64encode(b"certificate of a recorded cluster").decode()


def outputs(type_: str, name: str, inputs: Inputs, project: str) -> tuple[str, dict[str, Any]]:
    """(id, outputs) of a new resource; `name` is its name in the cloud where the inputs give none.

    Args:
        type_: Pulumi's type token, `gcp:container/cluster:Cluster`.
        inputs: as the provider gets them, camelCase.
        project: what the provider is configured for: a project of Google Cloud, or a region of AWS.
    """
    if type_.startswith("kubernetes:"):
        find = _kubernetes_service if type_ == "kubernetes:core/v1:Service" else _kubernetes
    elif type_.endswith(":BuildahImage"):
        find = _buildah_image
    elif found := _TABLE.get(type_) or computed_aws.TABLE.get(type_):
        find = found
    else:
        return name, dict(inputs)
    added, id_ = find(inputs.get("name") or name, inputs, inputs.get("project") or project)
    return id_, _merged(dict(inputs), added)


def _merged(inputs: dict[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """`inputs` with the outputs laid over them: inside objects, and inside the first object of a list."""
    for key, value in added.items():
        mine = inputs.get(key)
        if isinstance(mine, dict) and isinstance(value, dict):
            inputs[key] = _merged(dict(mine), value)
        elif isinstance(mine, list) and isinstance(value, list) and mine and isinstance(mine[0], dict):
            inputs[key] = [_merged(dict(mine[0]), value[0]), *mine[1:]]
        else:
            inputs[key] = value
    return inputs


def moved(type_: str, id_: str, outputs: dict[str, Any], inputs: Inputs, replaced: bool) -> tuple[str, dict[str, Any]]:
    """(id, outputs) of a resource after a change: all that the cloud adds to one that is replaced is new, and what it
    counts in one that is changed in place."""
    if replaced:
        return id_ + ANEW, _anew(outputs, inputs)
    return id_, {key: _anew(value, None) if key in replaces.counted(type_) else value for key, value in outputs.items()}


def _anew(value: Any, given: Any) -> Any:
    if isinstance(value, dict):
        return {key: _anew(item, given.get(key) if isinstance(given, Mapping) else None) for key, item in value.items()}
    if isinstance(value, list):
        paired = given if isinstance(given, list) and len(given) == len(value) else [None] * len(value)
        return [_anew(*pair) for pair in zip(value, paired, strict=True)]
    if value is None or given is not None or isinstance(value, bool):
        return value
    return value + (ANEW if isinstance(value, str) else 1)


def _number(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest()[:12], 16)


def address(text: str, network: str = "10.0") -> str:
    """An address that is the same for the same text."""
    number = _number(text)
    return f"{network}.{number // 250 % 250}.{number % 250 + 1}"


def _compute(kind: str, scope: str) -> Callable[[str, Inputs, str], Made]:
    """A Compute Engine resource in a scope: global, region or zone."""

    def made(name: str, inputs: Inputs, project: str) -> Made:
        place = "global" if scope == "global" else f"{scope}s/{inputs.get(scope, scope)}"
        id_ = f"projects/{project}/{place}/{kind}/{name}"
        link = f"https://www.googleapis.com/compute/v1/{id_}"
        return {"name": name, "project": project, "selfLink": link}, id_

    return made


def _router_nat(name: str, inputs: Inputs, project: str) -> Made:
    return {"name": name}, f"{project}/{inputs.get('region')}/{inputs.get('router')}/{name}"


def _service(_: str, inputs: Inputs, project: str) -> Made:
    return {"project": project}, f"{project}/{inputs.get('service')}"


def _account(_: str, inputs: Inputs, project: str) -> Made:
    email = f"{inputs.get('accountId')}@{project}.iam.gserviceaccount.com"
    id_ = f"projects/{project}/serviceAccounts/{email}"
    unique = str(_number(email))
    return {"email": email, "member": f"serviceAccount:{email}", "name": id_, "uniqueId": unique}, id_


def _member(name: str, inputs: Inputs, project: str) -> Made:
    return {"etag": "BwX"}, f"{project}/{inputs.get('role')}/{inputs.get('member')}"


def _cluster(name: str, inputs: Inputs, project: str) -> Made:
    location = inputs.get("location", "zone")
    id_ = f"projects/{project}/locations/{location}/clusters/{name}"
    dns = {"endpoint": f"gke-{_number(id_) % 10**10}.{location}.gke.goog"}
    added = {
        "name": name,
        "endpoint": address(id_, "192.0"),
        "masterAuth": {"clusterCaCertificate": CERTIFICATE},
        "masterVersion": "1.34.1-gke.1000000",
        "selfLink": f"https://container.googleapis.com/v1/{id_}",
        "project": project,
    }
    if inputs.get("controlPlaneEndpointsConfig"):
        added["controlPlaneEndpointsConfig"] = {"dnsEndpointConfig": dns}
    return added, id_


def _node_pool(name: str, inputs: Inputs, project: str) -> Made:
    id_ = f"projects/{project}/locations/{inputs.get('location')}/clusters/{inputs.get('cluster')}/nodePools/{name}"
    return {"name": name, "project": project, "instanceGroupUrls": []}, id_


def _filestore(name: str, inputs: Inputs, project: str) -> Made:
    id_ = f"projects/{project}/locations/{inputs.get('location')}/instances/{name}"
    return {"name": name, "networks": [{"ipAddresses": [address(id_, "10.200")]}]}, id_


def _repository(_: str, inputs: Inputs, project: str) -> Made:
    location, name = inputs.get("location"), inputs.get("repositoryId")
    id_ = f"projects/{project}/locations/{location}/repositories/{name}"
    return {"name": name, "project": project, "registryUri": f"{location}-docker.pkg.dev/{project}/{name}"}, id_


def _docker_image(_: str, inputs: Inputs, project: str) -> Made:
    tag = (inputs.get("tags") or ["image:latest"])[0]
    return {"ref": f"{tag.rsplit(':', 1)[0]}@{DIGEST}", "digest": DIGEST}, tag


def _buildah_image(_: str, inputs: Inputs, project: str) -> Made:
    reference = f"{inputs['target'].rsplit(':', 1)[0]}@{DIGEST}"
    return {"reference": reference}, reference


def _kubernetes(name: str, inputs: Inputs, project: str) -> Made:
    metadata = inputs.get("metadata") or {}
    given, namespace = metadata.get("name") or name, metadata.get("namespace")
    added: dict[str, Any] = {"metadata": {"name": given}}
    return added, f"{namespace}/{given}" if namespace else given


def _kubernetes_service(name: str, inputs: Inputs, project: str) -> Made:
    added, id_ = _kubernetes(name, inputs, project)
    # A headless Service says "None" itself; any other gets an address that stays for its life.
    if not (inputs.get("spec") or {}).get("clusterIP"):
        added["spec"] = {"clusterIP": address(id_, "10.100")}
    return added, id_


_TABLE: dict[str, Callable[[str, Inputs, str], Made]] = {
    "gcp:projects/service:Service": _service,
    "gcp:compute/network:Network": _compute("networks", "global"),
    "gcp:compute/subnetwork:Subnetwork": _compute("subnetworks", "region"),
    "gcp:compute/router:Router": _compute("routers", "region"),
    "gcp:compute/routerNat:RouterNat": _router_nat,
    "gcp:compute/firewall:Firewall": _compute("firewalls", "global"),
    "gcp:compute/disk:Disk": _compute("disks", "zone"),
    "gcp:compute/resourcePolicy:ResourcePolicy": _compute("resourcePolicies", "region"),
    "gcp:serviceaccount/account:Account": _account,
    "gcp:projects/iAMMember:IAMMember": _member,
    "gcp:serviceaccount/iAMMember:IAMMember": _member,
    "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember": _member,
    "gcp:container/cluster:Cluster": _cluster,
    "gcp:container/nodePool:NodePool": _node_pool,
    "gcp:filestore/instance:Instance": _filestore,
    "gcp:artifactregistry/repository:Repository": _repository,
    "docker-build:index:Image": _docker_image,
}

#: Functions that the program calls, and what they answer; AWS's are in computed_aws.py.
ANSWERS: dict[str, Callable[[Inputs, str], dict[str, Any]]] = {
    "gcp:organizations/getProject:getProject": lambda given, _: {
        "id": f"projects/{given['projectId']}",
        "projectId": given["projectId"],
        "number": str(_number(given["projectId"])),
    },
    **computed_aws.ANSWERS,
}
