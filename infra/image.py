"""The images of a stack: built from Dockerfiles of the project, pushed, and referred to by digest.

An image changes only when a file in it changes: its tag is a hash of those files, known at preview. One component has
two builders: BuildKit through pulumi-docker-build, and buildah for machines without a Docker engine. Both get a copy of
only those files, with the modes that git records, so that neither another image's files nor a umask changes an image.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pulumi

from infra.buildx import is_docker_hub
from infra.clouds import CLOUDS
from infra.cluster import Cluster
from infra.facts import load
from infra.private import private_folder
from infra.stackfiles import ROOT

#: Relative to the project's folder: a stack's state contains it, and must be the same on every machine.
CONTEXTS = ".local/contexts"
#: Seconds after which an unused build context is removed.
KEPT_SECONDS = 24 * 3600
#: BuildKit's attributes of a compression. zstd is among OCI's media types; Docker's have no name for it.
LAYERS = {
    "zstd": "oci-mediatypes=true,compression=zstd,compression-level=3",
    "gzip": "oci-mediatypes=true,compression=gzip",
}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """An image of the project."""

    name: str
    kind: str
    """Type of its component."""
    dockerfile: str
    context: tuple[str, ...]
    """Files and folders that enter the image."""

    @property
    def repository(self) -> str:
        return f"trainyard/{self.name}"

    def repository_in(self, registry: str) -> str:
        """The image's repository in `registry` (host[:port][/path]). Docker Hub allows only NAMESPACE/NAME."""
        name = self.repository.replace("/", "-") if is_docker_hub(registry) else self.repository
        return f"{registry}/{name}"


TRAINER = Recipe(
    name="trainer",
    kind="TrainerImage",
    dockerfile="trainer/Dockerfile",
    context=(
        *("LICENSE", "pyproject.toml", "requirements/bootstrap.txt", "requirements/install.py"),
        *("requirements/torch-cpu.txt", "requirements/trainer.txt", "trainer"),
    ),
)
NFS_SERVER = Recipe(
    name="nfs-server",
    kind="NfsServerImage",
    dockerfile="workloads/nfs_server/Dockerfile",
    context=("workloads/nfs_server",),
)
RECIPES = (TRAINER, NFS_SERVER)


class ContainerImage(pulumi.ComponentResource):
    """An image in the cluster's registry."""

    version: str
    """Hash of all that enters the image, 12 hex digits; for a prebuilt image, the first 12 of its digest."""
    reference: pulumi.Output[str]
    """name@sha256:digest, for pod specs."""

    def __init__(
        self,
        recipe: Recipe,
        cluster: Cluster,
        ref: str | None = None,
        build_args: Mapping[str, str] | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ):
        super().__init__(f"trainyard:infra:{recipe.kind}", recipe.name, None, opts)
        if cluster.builder == "prebuilt" or cluster.registry is None:
            assert ref is not None, "infra.rules requires image.ref with builder prebuilt"
            self.version = ref.rsplit(":", 1)[1][:12]
            self.reference = pulumi.Output.from_input(ref)
        else:
            build_args = {**(build_args or {}), **({"BASE_IMAGE": cluster.base_image} if cluster.base_image else {})}
            self.version = content_hash(recipe, build_args)
            build = _buildah if cluster.builder == "buildah" else _buildkit
            self.reference = build(recipe, cluster, self.version, build_args, pulumi.ResourceOptions(parent=self))
        self.register_outputs({"reference": self.reference})


def build_ahead(
    base_image: str, registry: str, tell: Callable[[str], None], environment: Mapping[str, str], authfile: str
) -> str:
    """Build and push the trainer's image as a stack on the local node would, so that the stack finds it built.

    That node has no accelerators. Returns the image's reference by digest.

    Raises:
        RuntimeError: with the last lines of the build's output.
    """
    from infra import buildah

    build_args = {"BASE_IMAGE": base_image, "TORCH": "cpu"}
    version = content_hash(TRAINER, build_args)
    target, context = _target(TRAINER, registry, version), str(ROOT / stage(TRAINER, version))
    run = partial(buildah.run_and_show, tell=lambda text: tell(text.removeprefix("image: ")), environment=environment)
    properties = {"target": target, "context": context, "dockerfile": TRAINER.dockerfile, "buildArgs": build_args}
    properties |= {"insecure": True, "compression": compression("existing"), "authfile": authfile}
    digest = buildah.publish(properties, run)
    return f"{target.rpartition(':')[0]}@{digest}"


def _target(recipe: Recipe, registry: str, version: str) -> str:
    return f"{recipe.repository_in(registry)}:{version}"


def compression(kind: str) -> str:
    """Compression of an image's layers for a kind of cluster (image.yaml): zstd or gzip."""
    return load((CLOUDS[kind].folder or Path(__file__).parent) / "image.yaml")["compression"]


def content_hash(recipe: Recipe, build_args: dict[str, str], root: Path = ROOT) -> str:
    """12 hex digits over names, modes and contents of the files that enter the image, and over the build arguments."""
    digest = hashlib.sha256()
    for path in context_files(recipe, root):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(root)}\0{_mode(path):o}\0{content}\n".encode())
    digest.update(repr(sorted(build_args.items())).encode())
    return digest.hexdigest()[:12]


def _mode(path: Path) -> int:
    """The file's mode in an image, one of the two that git records: the other bits depend on the checkout's umask."""
    return 0o755 if path.stat().st_mode & 0o100 else 0o644


def stage(recipe: Recipe, version: str, root: Path = ROOT) -> str:
    """Copy what enters the image to a folder of its own; return its path below `root`.

    Keeps modification times: BuildKit compares size and time to see whether it has a file already.
    """
    relative = f"{CONTEXTS}/{recipe.name}-{version}"
    folder = root / relative
    if not folder.exists():
        private_folder(root / ".local")
        folder.parent.mkdir(exist_ok=True)
        _remove_old(folder.parent)
        made = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
        made.chmod(0o755)
        for path in context_files(recipe, root):
            copy = made / path.relative_to(root)
            for parent in reversed(copy.relative_to(made).parents[:-1]):
                (made / parent).mkdir(exist_ok=True)
                (made / parent).chmod(0o755)
            shutil.copy2(path, copy)
            copy.chmod(_mode(path))
        try:
            made.rename(folder)
        except OSError:
            # A concurrent `pulumi up` staged the same files first.
            shutil.rmtree(made)
    return relative


def _remove_old(contexts: Path) -> None:
    for other in contexts.iterdir():
        if time.time() - other.stat().st_mtime > KEPT_SECONDS:
            shutil.rmtree(other, ignore_errors=True)


def context_files(recipe: Recipe, root: Path = ROOT) -> list[Path]:
    """The files that enter the image, sorted."""
    found: list[Path] = []
    for entry in recipe.context:
        path = root / entry
        found += [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sorted(file for file in found if "__pycache__" not in file.parts)


def _buildah(
    recipe: Recipe, cluster: Cluster, version: str, build_args: dict[str, str], opts: pulumi.ResourceOptions
) -> pulumi.Output[str]:
    # Imported here: only this builder needs the machinery of dynamic providers.
    from infra.buildah import BuildahImage

    registry = cluster.registry
    assert registry is not None
    image = BuildahImage(
        recipe.name,
        target=pulumi.Output.from_input(registry.address).apply(lambda address: _target(recipe, address, version)),
        context=stage(recipe, version),
        dockerfile=recipe.dockerfile,
        build_args=build_args,
        insecure=registry.insecure,
        compression=registry.compression,
        authfile=registry.authfile,
        opts=opts,
    )
    return image.reference


def _buildkit(
    recipe: Recipe, cluster: Cluster, version: str, build_args: dict[str, str], opts: pulumi.ResourceOptions
) -> pulumi.Output[str]:
    # Imported here: a stack that builds with buildah, or not at all, needs neither the package nor its plugin.
    import pulumi_docker_build as docker_build

    registry = cluster.registry
    assert registry is not None
    repository = pulumi.Output.from_input(registry.address).apply(recipe.repository_in)
    cache = pulumi.Output.concat("type=registry,ref=", repository, registry.cache)
    # What a build takes from a cache is what the image runs. A registry without accounts lets everybody who reaches it
    # write the cache's tag; there the builder's own cache serves.
    shares = not registry.insecure
    # Attributes as buildx takes them: the plugin's type for exports writes `insecure`, where BuildKit's attribute is
    # `registry.insecure` (pulumi-docker-build 0.0.22, provider/internal).
    plain = ",registry.insecure=true" if registry.insecure else ""
    context = stage(recipe, version)
    login = registry.login
    image = docker_build.Image(
        recipe.name,
        tags=[pulumi.Output.concat(repository, f":{version}")],
        exports=[docker_build.ExportArgs(raw=f"type=registry,{LAYERS[registry.compression]}{plain}")],
        # `push` is a short form of `exports` without attributes.
        push=False,
        # The preview of a pull request needs no Docker engine, and builds nothing.
        build_on_preview=False,
        builder=docker_build.BuilderConfigArgs(name=cluster.buildx) if cluster.buildx else None,
        context=docker_build.BuildContextArgs(location=context),
        dockerfile=docker_build.DockerfileArgs(location=f"{context}/{recipe.dockerfile}"),
        build_args=build_args,
        # A laptop with another architecture builds for the nodes too.
        platforms=[docker_build.Platform.LINUX_AMD64],
        cache_from=[docker_build.CacheFromArgs(raw=cache)] if shares else None,
        cache_to=[
            docker_build.CacheToArgs(
                raw=pulumi.Output.concat(cache, f",mode=max,image-manifest=true,{LAYERS[registry.compression]}")
            )
        ]
        if shares
        else None,
        registries=[docker_build.RegistryArgs(address=login.server, username=login.user, password=login.password)]
        if login
        else None,
        opts=opts,
    )
    return image.ref
