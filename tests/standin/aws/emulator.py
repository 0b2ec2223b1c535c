"""moto's server on loopback, with what moto 5.2 has not: EKS add-ons, access entries, pod identities, another launch
template for a node group; EC2 placement groups.

The operations answer in AWS's own form: boto3 checks what goes in, moto's serializer what comes out, both against
AWS's models. Only tests import this.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from moto.core.responses import ActionResult, EmptyResult
from moto.ec2 import urls as ec2_urls
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.responses import EC2Response
from moto.eks import urls as eks_urls
from moto.eks.exceptions import (
    InvalidParameterException,
    InvalidRequestException,
    ResourceInUseException,
    ResourceNotFoundException,
)
from moto.eks.responses import EKSResponse
from moto.server import ThreadedMotoServer

#: Who calls, whatever the credentials (moto's answer to sts:GetCallerIdentity).
CALLER = "moto"
#: Add-ons that EKS offers, as far as a training cluster uses them.
ADDONS = (
    "vpc-cni",
    "kube-proxy",
    "coredns",
    "eks-pod-identity-agent",
    "eks-node-monitoring-agent",
    "aws-efs-csi-driver",
    "aws-ebs-csi-driver",
)


@contextmanager
def aws() -> Iterator[str]:
    """The endpoint of an emulated AWS, for as long as the context lasts."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    ec2_urls.url_paths["{0}/"] = Ec2.dispatch
    for path in [*eks_urls.url_paths, *_MORE_PATHS]:
        eks_urls.url_paths[path] = Eks.dispatch
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    # With the policies that AWS manages: whether a role has the right ones is part of what is tested.
    with patch.dict("os.environ", MOTO_IAM_LOAD_MANAGED_POLICIES="true"):
        server.start()
        try:
            host, port = server.get_host_and_port()
            yield f"http://{host}:{port}"
        finally:
            server.stop()


#: Everything of a cluster; which operation a path means, moto reads from AWS's model.
_MORE_PATHS = ["{0}/clusters/(?P<name>[^/]+)/(?P<rest>.+)$"]


class Eks(EKSResponse):
    """What a cluster has beside its node groups is kept with the cluster, and goes with it."""

    def _given(self) -> dict[str, Any]:
        self.parse_parameters(self.normalized_request)
        return dict(self.params)

    def _of(self, what: str, cluster: str) -> dict[str, dict[str, Any]]:
        return vars(self.eks_backend.describe_cluster(cluster)).setdefault(f"kept_{what}", {})

    def _arn(self, what: str, cluster: str) -> str:
        return f"arn:aws:eks:{self.region}:{self.current_account}:{what}/{cluster}/{uuid.uuid4()}"

    def _made(self, what: str, key: str, thing: dict[str, Any]) -> dict[str, Any]:
        kept = self._of(what, thing["clusterName"])
        if key in kept:
            raise ResourceInUseException(message=f"{what} {key} already exists in the cluster")
        kept[key] = thing
        return thing

    def _found(self, what: str, cluster: str, key: str) -> dict[str, Any]:
        kept = self._of(what, cluster)
        if key not in kept:
            raise ResourceNotFoundException(message=f"no {what} {key} in cluster {cluster}")
        return kept[key]

    def create_cluster(self) -> ActionResult:
        given = self._given()
        answer = super().create_cluster()
        access = given.get("accessConfig") or {}
        answer.result["cluster"].access_config = access  # type: ignore[index]
        if access.get("bootstrapClusterCreatorAdminPermissions", True):
            creator = f"arn:aws:iam::{self.current_account}:user/{CALLER}"
            self._of("access entry", given["name"])[creator] = {"principalArn": creator, "policies": {}}
        return answer

    def create_addon(self) -> ActionResult:
        given = self._given()
        cluster, name = given["clusterName"], given["addonName"]
        if name not in ADDONS:
            raise InvalidParameterException(message=f"Addon {name} specified is not supported")
        for association in given.get("podIdentityAssociations") or []:
            self._associate({**association, "clusterName": cluster, "namespace": "kube-system"})
        arn = self._arn("addon", cluster)
        return ActionResult({"addon": self._made("addon", name, {**given, "addonArn": arn, "status": "ACTIVE"})})

    def update_addon(self) -> ActionResult:
        given = self._given()
        self._found("addon", given["clusterName"], given["addonName"]).update(given)
        return ActionResult({"update": {"id": str(uuid.uuid4()), "status": "Successful"}})

    def list_addons(self) -> ActionResult:
        return ActionResult({"addons": list(self._of("addon", self._given()["clusterName"]))})

    def delete_addon(self) -> ActionResult:
        given = self._given()
        addon = self._found("addon", given["clusterName"], given["addonName"])
        identities = self._of("pod identity", given["clusterName"])
        for association in addon.get("podIdentityAssociations") or []:
            identities.pop(f"kube-system/{association['serviceAccount']}", None)
        return ActionResult({"addon": self._of("addon", given["clusterName"]).pop(given["addonName"])})

    def create_access_entry(self) -> ActionResult:
        given = self._given()
        cluster = self.eks_backend.describe_cluster(given["clusterName"])
        if "API" not in (cluster.access_config.get("authenticationMode") or "CONFIG_MAP"):  # type: ignore[attr-defined]
            mode = "The cluster's authentication mode must be set to one of [API, API_AND_CONFIG_MAP]"
            raise InvalidRequestException(message=f"{mode} to perform this operation.")
        entry = {**given, "accessEntryArn": self._arn("access-entry", given["clusterName"]), "policies": {}}
        return ActionResult({"accessEntry": self._made("access entry", given["principalArn"], entry)})

    def list_access_entries(self) -> ActionResult:
        return ActionResult({"accessEntries": list(self._of("access entry", self._given()["clusterName"]))})

    def delete_access_entry(self) -> EmptyResult:
        given = self._given()
        self._found("access entry", given["clusterName"], given["principalArn"])
        self._of("access entry", given["clusterName"]).pop(given["principalArn"])
        return EmptyResult()

    def associate_access_policy(self) -> ActionResult:
        given = self._given()
        entry = self._found("access entry", given["clusterName"], given["principalArn"])
        entry["policies"][given["policyArn"]] = given
        return ActionResult({**given, "associatedAccessPolicy": given})

    def disassociate_access_policy(self) -> EmptyResult:
        given = self._given()
        entry = self._found("access entry", given["clusterName"], given["principalArn"])
        entry["policies"].pop(given["policyArn"], None)
        return EmptyResult()

    def _associate(self, given: dict[str, Any]) -> dict[str, Any]:
        id_ = f"a-{uuid.uuid4().hex[:17]}"
        arn = self._arn("podidentityassociation", given["clusterName"])
        thing = {**given, "associationId": id_, "associationArn": arn}
        return self._made("pod identity", f"{given['namespace']}/{given['serviceAccount']}", thing)

    def create_pod_identity_association(self) -> ActionResult:
        return ActionResult({"association": self._associate(self._given())})

    def list_pod_identity_associations(self) -> ActionResult:
        return ActionResult({"associations": list(self._of("pod identity", self._given()["clusterName"]).values())})

    def describe_pod_identity_association(self) -> ActionResult:
        given = self._given()
        for thing in self._of("pod identity", given["clusterName"]).values():
            if thing["associationId"] == given["associationId"]:
                return ActionResult({"association": thing})
        raise ResourceNotFoundException(message=f"no pod identity association {given['associationId']}")

    def delete_pod_identity_association(self) -> ActionResult:
        given = self._given()
        kept = self._of("pod identity", given["clusterName"])
        for key, thing in list(kept.items()):
            if thing["associationId"] == given["associationId"]:
                return ActionResult({"association": kept.pop(key)})
        raise ResourceNotFoundException(message=f"no pod identity association {given['associationId']}")

    def update_nodegroup_version(self) -> ActionResult:
        given = self._given()
        group = self.eks_backend.describe_nodegroup(given["clusterName"], given["nodegroupName"])
        group.launch_template = given.get("launchTemplate") or group.launch_template
        group.version = given.get("version") or group.version
        return ActionResult({"update": {"id": str(uuid.uuid4()), "status": "Successful"}})


class Ec2(EC2Response):
    def _groups(self) -> dict[str, dict[str, Any]]:
        return vars(self.ec2_backend).setdefault("kept_placement_groups", {})

    def create_placement_group(self) -> ActionResult:
        name, strategy = self._get_param("GroupName"), self._get_param("Strategy")
        if name in self._groups():
            raise EC2ClientError("InvalidPlacementGroup.Duplicate", f"The placement group '{name}' already exists.")
        self._groups()[name] = {"GroupName": name, "Strategy": strategy, "State": "available"}
        return ActionResult({"PlacementGroup": self._groups()[name]})

    def describe_placement_groups(self) -> ActionResult:
        return ActionResult({"PlacementGroups": list(self._groups().values())})

    def delete_placement_group(self) -> EmptyResult:
        name = self._get_param("GroupName")
        if self._groups().pop(name, None) is None:
            raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
        return EmptyResult()
