"""Removes this checkout's unused trainer images, and tells whether the next one needs new packages.

Each image is stored three times: by the builder, in the registry and unpacked (6 GB for the trainer's). The kubelet
removes an unpacked image that no pod has used for an hour. This module removes the other two copies. It keeps the
newest image of each name, whose layers the next build reuses, and those that a stack of this checkout refers to.
"""

import shutil
from pathlib import Path

from infra.state import files
from local import images, network, paths, processes
from local.daemons import configure
from local.phases import Phases
from local.shell import run

PROJECT = "trainyard"
#: The inputs of the trainer image's largest layer, its packages, apart from the base image.
PACKAGES = (
    *("requirements/bootstrap.txt", "requirements/install.py", "requirements/torch-cpu.txt"),
    *("requirements/trainer.txt", "trainer/Dockerfile"),
)


def tags() -> dict[str, list[Path]]:
    """Map each image's name to the folders of its tags in the registry, newest first."""
    names = paths.REGISTRY_DATA / "docker/registry/v2/repositories" / PROJECT
    return {
        f"{PROJECT}/{name.name}": sorted(
            (link.parent.parent for link in name.glob("_manifests/tags/*/current/link")),
            key=lambda tag: (tag / "current/link").stat().st_mtime,
            reverse=True,
        )
        for name in sorted(names.glob("*"))
    }


def has_packages() -> bool:
    """Whether the registry has an image that is younger than its packages' list, so that a build adds small layers."""
    if not images.base_tar_is_current():
        return False
    pushed = [(tag / "current/link").stat().st_mtime for tag in tags().get(f"{PROJECT}/trainer", ())[:1]]
    return bool(pushed) and all((paths.ROOT / name).stat().st_mtime < pushed[0] for name in PACKAGES)


def unused() -> list[tuple[str, Path]]:
    """List (name, folder of the tag) of images that are neither the newest of their name nor in a stack's state."""
    state = "".join(path.read_text() for path in files(paths.PULUMI_STATE))

    def is_used(name: str, tag: Path) -> bool:
        return f"{name}:{tag.name}" in state or (tag / "current/link").read_text().strip() in state

    return [(name, tag) for name, there in tags().items() for tag in there[1:] if not is_used(name, tag)]


def remove_unused(phases: Phases) -> None:
    """Remove unused images. This stops the registry, so call it before the registry starts."""
    found = unused()
    if not found or processes.find(_builds):
        return
    with phases.phase(f"remove {len(found)} old image{'s' * (len(found) > 1)}"):
        # The builder's copy first: the registry's tag is what lets the next run resume an interrupted removal.
        built = set(images.buildah("images", "--format", "{{.Name}}:{{.Tag}}", what="list images").split())
        old = {f"{network.REGISTRY}/{name}:{tag.name}" for name, tag in found} & built
        if old:
            images.buildah("rmi", "--force", *sorted(old), what="remove old images")
        images.buildah("rmi", "--prune", what="remove old layers")
        processes.stop("registry")
        for _, tag in found:
            shutil.rmtree(tag)
        config = str(configure("registry.yml"))
        run(["docker-registry", "garbage-collect", "--delete-untagged", config], "remove old images of the registry")


def _builds(entry: Path) -> bool:
    """Whether a process is a buildah of this checkout, which may be pushing layers to the registry."""
    ours = f"CONTAINERS_STORAGE_CONF={configure('storage.conf')}\0".encode()
    return (entry / "comm").read_text() == "buildah\n" and ours in (entry / "environ").read_bytes()
