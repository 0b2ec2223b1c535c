"""The versions that GKE would give a new cluster: Kubernetes by the channel, NVIDIA's driver by the nodes' image."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from infra.config import StackConfig
from infra.doctor.driver import SUBJECT, image_cuda, judge
from infra.doctor.finding import Finding, ok, or_unchecked, problem, unchecked, warning
from infra.gke.doctor.google_client import Google, NoAnswer
from infra.gke.keys import GkeConfig, GkeNodes
from infra.gke.services import used
from infra.needs import numbers

RAPID = "pulumi config set --path gke.releaseChannel RAPID"
LATEST = "pulumi config set --path nodes.gpuDriverVersion LATEST"


@or_unchecked("GKE's version")
def kubernetes(google: Google, config: StackConfig) -> Iterator[Finding]:
    """Whether the version that the release channel would give has all features of the stack."""
    gke, version = config.section(GkeConfig), _channel_version(google, config)
    needed = {name: it.versions["gke"] for name, it in used(config).items() if "gke" in it.versions}
    late = [name for name in needed if numbers(needed[name]) > numbers(version)]
    if late:
        newest = max((needed[name] for name in late), key=numbers)
        fix = f"{RAPID}   # or do without {', '.join(late)}"
        need = f"{', '.join(late)} need{'s' if len(late) == 1 else ''} {newest} or newer"
        text = f"{gke.release_channel} gives {version or 'none'}; {need}"
        yield problem("GKE's version", text, fix)
    else:
        yield ok("GKE's version", f"{version} has all that is used")


def driver(google: Google, config: StackConfig) -> Iterator[Finding]:
    """Whether the driver that GKE would install runs the image's torch."""
    nodes, accelerator, cuda = config.section(GkeNodes), config.machine.accelerator, image_cuda(config)
    if not accelerator or not cuda:
        return
    # The installer on the node, which the DaemonSet runs, installs the default version
    # (cloud.google.com/kubernetes-engine/docs/how-to/gpus#installing_drivers).
    label, fix = nodes.gpu_driver_version, LATEST
    if nodes.gpu_driver == "daemonset":
        label, fix = (
            "DEFAULT",
            "pulumi config set --path nodes.gpuDriver managed   # with nodes.gpuDriverVersion LATEST",
        )
    try:
        version = _channel_version(google, config)
        offered = _drivers(google, version, accelerator)
        if label not in offered:
            raise NoAnswer(f"Google's list for GKE {version} has no {label} driver for {accelerator}")
    except NoAnswer as reason:
        text = f"{reason}; the node check (check.enabled) finds out on the nodes"
        yield unchecked(SUBJECT, text) if label == "LATEST" else warning(SUBJECT, text, fix)
        return
    yield judge(f"GKE {version} installs ({label})", offered[label], cuda, fix if label == "DEFAULT" else RAPID)


def _channel_version(google: Google, config: StackConfig) -> str:
    """The version that the release channel gives a new cluster; empty: none. Raises NoAnswer."""
    gke = config.section(GkeConfig)
    answer = google.get("container", f"projects/{gke.project}/locations/{gke.zone}/serverConfig")
    given = {item["channel"]: item.get("defaultVersion", "") for item in answer.get("channels", [])}
    return given.get(gke.release_channel, "")


def _drivers(google: Google, version: str, accelerator: str) -> dict[str, str]:
    """DEFAULT and LATEST -> the driver that nodes of a GKE version get for an accelerator, where Google says so.

    The way is that of cloud.google.com/kubernetes-engine/docs/how-to/gpus#map-gke-cos-gpu; the form of both lists is
    that of GoogleCloudPlatform/professional-services, tools/gke-gpu-driver-version, and gpu_driver_versions.proto of
    cos.googlesource.com/cos/tools. Read 2026-11-26. Raises NoAnswer.
    """
    try:
        entries = json.loads(google.public("gke-image-maps", "gke-to-cos.json"))["entries"]
        images = [entry["image"] for entry in entries if entry["gke_version"] == version]
    except (ValueError, KeyError, TypeError):
        raise NoAnswer("Google's map from GKE's versions to node images has another form") from None
    found = re.search(r"cos-\d+-(\d+)-(\d+)-(\d+)", images[0]) if images else None
    if not found:
        raise NoAnswer(f"Google's map from GKE's versions to node images has no {version or 'version'}")
    text = google.public("cos-tools", f"{'.'.join(found.groups())}/lakitu/gpu_driver_versions.textproto")
    # [before, type, its drivers, type, its drivers, ...]
    parts = re.split(r'gpu_type\s*:\s*"([^"]*)"', text)
    own = dict(zip(parts[1::2], parts[2::2], strict=True)).get(accelerator.upper().replace("-", "_"), "")
    fields = [dict(re.findall(r'(label|version)\s*:\s*"([^"]*)"', each)) for each in re.findall(r"\{([^{}]*)\}", own)]
    return {each["label"]: each["version"] for each in fields if each.keys() == {"label", "version"}}
