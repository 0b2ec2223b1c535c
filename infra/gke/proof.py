"""`trainyard prove` on Google Cloud: ends or interrupts a machine by Compute Engine's API, and searches every list."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from infra.clouds import Until
from infra.config import StackConfig
from infra.gke.doctor.google_client import Google, NoAnswer, connect
from infra.gke.keys import GkeConfig, GkeStorage
from infra.stackfiles import is_marked

#: Compute Engine's collections that GKE and the stack make things in, for aggregatedList, and the global ones
#: (cloud.google.com/compute/docs/reference/rest/v1, 2026-11).
AGGREGATED = ("instances", "disks", "instanceGroups", "addresses", "forwardingRules", "routers", "subnetworks")
GLOBAL = ("networks", "firewalls", "instanceTemplates")
STOPPED = ("TERMINATED", "STOPPED", "STOPPING")


class Gcp:
    def __init__(self, login: Callable[[], Google] = connect) -> None:
        self.google = login()

    def delete_machine(self, provider_id: str) -> None:
        self.google.delete("compute", _instance(provider_id))

    def interrupt(self, provider_id: str, until: Until) -> str:
        """Simulate a host maintenance, which stops machines that cannot migrate live, such as Spot machines.

        docs.cloud.google.com/compute/docs/instances/simulating-host-maintenance, read 2026-11-22.
        """
        path = _instance(provider_id)
        born = self.google.get("compute", path).get("id")
        self.google.post("compute", f"{path}/simulateMaintenanceEvent", {})
        until(lambda: self._gone(path, born), 600, "the machine's end after the simulated maintenance")
        return "stopped by instances.simulateMaintenanceEvent"

    def _gone(self, path: str, born: str | None) -> bool:
        """Whether the machine is stopped, deleted, or recreated by its group under the same name."""
        try:
            found = self.google.get("compute", path)
        except NoAnswer as reason:
            return reason.status == 404
        return found.get("id") != born or found.get("status") in STOPPED

    def leftovers(self, config: StackConfig, stack: str) -> tuple[str, list[str]]:
        gke, name, found = config.section(GkeConfig), config.name, list[str]()
        project, region = gke.project, gke.region
        # By whole names: a stack NAME-2 has names that begin with NAME- too. What GKE names after a cluster, such as
        # gke-NAME-POOL-HASH, is in the stack's network (instances, groups, templates, firewall rules) or has the label.
        names = {name, f"{name}-nodes", f"{name}-data"}

        def note(kind: str, items: list[dict[str, Any]]) -> None:
            for item in items:
                called = str(item.get("name") or item.get("email")).rsplit("/", 1)[-1]
                labels = item.get("labels") or item.get("resourceLabels") or {}
                ours = is_marked(labels, stack) or labels.get("goog-k8s-cluster-name") == name
                if ours or called.partition("@")[0] in names or f'/networks/{name}"' in json.dumps(item):
                    found.append(f"{kind} {called}")

        for kind in AGGREGATED:
            for place in self.google.pages("compute", f"projects/{project}/aggregated/{kind}", "items"):
                note(kind, place.get(kind) or [])
        for kind in GLOBAL:
            note(kind, self.google.pages("compute", f"projects/{project}/global/{kind}", "items"))
        note("clusters", self.google.get("container", f"projects/{project}/locations/-/clusters").get("clusters") or [])
        lists = [
            ("artifactregistry", f"projects/{project}/locations/{region}/repositories", "repositories"),
            ("iam", f"projects/{project}/serviceAccounts", "accounts"),
        ]
        if config.section(GkeStorage).kind == "filestore":
            lists.append(("file", f"projects/{project}/locations/-/instances", "instances"))
        for service, path, key in lists:
            note(path.rsplit("/", 1)[-1], self.google.pages(service, path, key))
        looked = [*AGGREGATED, *GLOBAL, "clusters", *(path.rsplit("/", 1)[-1] for _, path, _ in lists)]
        return f"{', '.join(looked)} of {project}, by name, label and network", found


def _instance(provider_id: str) -> str:
    """The API's path of gce://PROJECT/ZONE/NAME, a node's spec.providerID."""
    project, zone, name = provider_id.removeprefix("gce://").split("/")
    return f"projects/{project}/zones/{zone}/instances/{name}"
