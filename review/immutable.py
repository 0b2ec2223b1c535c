"""Which fields cannot change on a live object, so that a change replaces it.

The table is the real plugin's (pulumi/pulumi-kubernetes, provider/pkg/provider/diff.go). A path matches itself and
everything below it; `*` stands for any list index.
"""

from __future__ import annotations

from typing import Any

Path = tuple[str | int, ...]


def _words(text: str) -> list[str]:
    return text.split()


_CONTAINER_FIELDS = _words("""
    args command env image imagePullPolicy lifecycle livenessProbe ports readinessProbe resources securityContext stdin
    stdinOnce terminationMessagePath terminationMessagePolicy tty volumeDevices volumeMounts workingDir
""")
_POD_FIELDS = _words("""
    affinity automountServiceAccountToken dnsConfig dnsPolicy enableServiceLinks hostAliases hostIPC hostNetwork hostPID
    hostname imagePullSecrets nodeName nodeSelector overhead preemptionPolicy priority priorityClassName readinessGates
    restartPolicy runtimeClassName schedulerName securityContext serviceAccount serviceAccountName
    shareProcessNamespace subdomain terminationGracePeriodSeconds volumes
""")
_VOLUME_SOURCES = _words("""
    awsElasticBlockStore azureDisk azureFile cephfs cinder csi fc flexVolume flocker gcePersistentDisk glusterfs
    hostPath iscsi local nfs photonPersistentDisk portworxVolume quobyte rbd scaleIO storageos vsphereVolume
""")
_SELECTOR = [("spec", "selector")]

FORCE_NEW: dict[tuple[str, str], list[tuple[str, ...]]] = {
    ("apps", "Deployment"): _SELECTOR,
    ("apps", "DaemonSet"): _SELECTOR,
    ("apps", "StatefulSet"): [
        ("spec", field)
        for field in ("podManagementPolicy", "revisionHistoryLimit", "selector", "serviceName", "volumeClaimTemplates")
    ],
    ("batch", "Job"): [("spec", field) for field in ("completions", "parallelism", "selector", "template")],
    ("", "PersistentVolume"): [("spec", source) for source in _VOLUME_SOURCES],
    ("", "PersistentVolumeClaim"): [
        ("spec", field) for field in ("accessModes", "selector", "storageClassName", "volumeName")
    ],
    ("", "Pod"): [("spec", field) for field in _POD_FIELDS]
    + [("spec", kind, "*", field) for kind in ("containers", "initContainers") for field in _CONTAINER_FIELDS],
    ("", "ResourceQuota"): [("spec", "scopes")],
    ("", "ConfigMap"): [("data",), ("binaryData",)],
    ("", "Secret"): [("type",), ("data",), ("stringData",)],
    ("", "Service"): [("spec", "clusterIP")],
    ("rbac.authorization.k8s.io", "RoleBinding"): [("roleRef",)],
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): [("roleRef",)],
    ("storage.k8s.io", "StorageClass"): [("parameters",), ("provisioner",)],
}
IDENTITY: list[tuple[str, ...]] = [("metadata", "name"), ("metadata", "namespace")]


def force_new_paths(obj: dict[str, Any]) -> list[tuple[str, ...]]:
    """The paths of an object whose change replaces it.

    ConfigMaps and Secrets are replaced when their data changes, so that pods see new data under a new automatic name.
    """
    group = obj["apiVersion"].partition("/")[0] if "/" in obj["apiVersion"] else ""
    return [*IDENTITY, *FORCE_NEW.get((group, obj["kind"]), [])]


def matches(path: Path, patterns: list[tuple[str, ...]]) -> bool:
    """Whether a changed path is, contains or lies below one of the patterns."""
    return any(all(want in ("*", have) for have, want in zip(path, pattern, strict=False)) for pattern in patterns)
