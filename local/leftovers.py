"""Old trainer images of this checkout, which nothing uses any more, and the room that a new one takes.

Each image lies here three times: builder, registry, unpacked (18 GB of the trainer's). The kubelet removes what no pod
has used for an hour; the other two are removed here, but for the newest of each name, whose layers the next build
takes over, and what a stack of this checkout refers to.
"""

import shutil
import subprocess
from pathlib import Path

from local import images, network, paths, processes
from local.daemons import configure
from local.phases import Phases
from local.shell import run

PROJECT = "trainyard"
#: What the heavy layer of the trainer's image, its packages, is made from, but for the base.
PACKAGES = ("requirements/bootstrap.txt", "requirements/trainer.txt", "trainer/Dockerfile")


def tags() -> dict[str, list[Path]]:
    """Folders of the tags in the registry by the image's name, newest first."""
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
    """Whether the registry has an image of today's packages, so that a build makes small layers only."""
    if not images.base_tar_is_current():
        return False
    return any(_has_packages_of_today(tag) for tag in tags().get(f"{PROJECT}/trainer", ()))


def begun() -> float:
    """GB that builder and registry hold of the first image, which is not finished: it needs as much less."""
    if tags().get(f"{PROJECT}/trainer"):
        return 0.0
    # Neither what is mounted there, nor an end where a build beside us removes a file.
    command = ["du", "-scx", "--block-size=1", paths.BUILDAH, paths.REGISTRY_DATA]
    counted = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    return int(counted[-1].split()[0]) / 1e9


def _has_packages_of_today(tag: Path) -> bool:
    built = [paths.STATE / "contexts" / f"trainer-{tag.name}" / name for name in PACKAGES]
    today = [paths.ROOT / name for name in PACKAGES]
    if all(file.exists() for file in built):
        return all(one.read_bytes() == other.read_bytes() for one, other in zip(built, today, strict=True))
    # What an image was built from goes after a day (infra/image.py). What nobody touched since the push is the same.
    pushed = (tag / "current/link").stat().st_mtime
    return all(file.stat().st_mtime < pushed for file in today)


def unused() -> list[tuple[str, Path]]:
    """(name, folder of the tag) of images that are neither the newest of their name nor in a stack's state."""
    stacks = (paths.PULUMI_STATE / ".pulumi/stacks").glob("*/*.json")
    state = "".join(path.read_text() for path in stacks)

    def is_used(name: str, tag: Path) -> bool:
        return f"{name}:{tag.name}" in state or (tag / "current/link").read_text().strip() in state

    return [(name, tag) for name, there in tags().items() for tag in there[1:] if not is_used(name, tag)]


def remove_unused(phases: Phases) -> None:
    """Give back the disk of images that nothing uses. Stops the registry, so its start comes after this."""
    found = unused()
    if not found or processes.find(_builds):
        return
    with phases.phase(f"remove {len(found)} old image{'s' * (len(found) > 1)}"):
        # The builder's first: while the registry has a tag, a removal that was interrupted is taken up again.
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
    """Whether a process is a buildah of this checkout: it may be pushing layers that the registry has."""
    ours = f"CONTAINERS_STORAGE_CONF={configure('storage.conf')}\0".encode()
    return (entry / "comm").read_text() == "buildah\n" and ours in (entry / "environ").read_bytes()
