"""The images of a stack: built from Dockerfiles of the project, pushed, and referred to by digest.

An image is new only when a file that enters it changed: its tag is a hash of those files, known at preview. Behind one
component stand two builders: BuildKit through pulumi-docker-build, and buildah for machines without a Docker engine.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import pulumi

from infra.cluster import Cluster, Registry

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """An image of the project."""

    name: str
    kind: str
    """Name of its component."""
    dockerfile: str
    context: tuple[str, ...]
    """What enters the image; .dockerignore lets the same paths through."""

    @property
    def repository(self) -> str:
        return f"trainyard/{self.name}"


TRAINER = Recipe(
    name="trainer",
    kind="TrainerImage",
    dockerfile="trainer/Dockerfile",
    context=("LICENSE", "pyproject.toml", "requirements/bootstrap.txt", "requirements/trainer.txt", "trainer"),
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
    """Hash of all that enters the image, 12 hex digits; of a prebuilt image, of its digest."""
    reference: pulumi.Output[str]
    """name@sha256:digest, for pod specs."""

    def __init__(
        self, recipe: Recipe, cluster: Cluster, ref: str | None = None, opts: pulumi.ResourceOptions | None = None
    ):
        super().__init__(f"trainyard:infra:{recipe.kind}", recipe.name, None, opts)
        if cluster.builder == "prebuilt" or cluster.registry is None:
            assert ref is not None, "infra.config lets no prebuilt image without a reference through"
            self.version = ref.rsplit(":", 1)[1][:12]
            self.reference = pulumi.Output.from_input(ref)
        else:
            build_args = {"BASE_IMAGE": cluster.base_image} if cluster.base_image else {}
            self.version = content_hash(recipe, build_args)
            build = _buildah if cluster.builder == "buildah" else _buildkit
            self.reference = build(
                recipe, cluster.registry, self.version, build_args, pulumi.ResourceOptions(parent=self)
            )
        self.register_outputs({"reference": self.reference})


def content_hash(recipe: Recipe, build_args: dict[str, str], root: Path = ROOT) -> str:
    """12 hex digits over the names and contents of the files that enter the image, and over the build arguments."""
    digest = hashlib.sha256()
    for path in context_files(recipe, root):
        digest.update(f"{path.relative_to(root)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    digest.update(repr(sorted(build_args.items())).encode())
    return digest.hexdigest()[:12]


def context_files(recipe: Recipe, root: Path = ROOT) -> list[Path]:
    """The files that enter the image, sorted."""
    found: list[Path] = []
    for entry in recipe.context:
        path = root / entry
        found += [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sorted(file for file in found if "__pycache__" not in file.parts)


def _buildah(
    recipe: Recipe, registry: Registry, version: str, build_args: dict[str, str], opts: pulumi.ResourceOptions
) -> pulumi.Output[str]:
    # Only this builder needs it, and it imports the machinery of dynamic providers.
    from infra.buildah import BuildahImage

    image = BuildahImage(
        recipe.name,
        target=pulumi.Output.concat(registry.address, f"/{recipe.repository}:{version}"),
        dockerfile=recipe.dockerfile,
        build_args=build_args,
        insecure=registry.insecure,
        opts=opts,
    )
    return image.reference


def _buildkit(
    recipe: Recipe, registry: Registry, version: str, build_args: dict[str, str], opts: pulumi.ResourceOptions
) -> pulumi.Output[str]:
    # Imported here: a stack that builds with buildah, or not at all, needs neither the package nor its plugin.
    import pulumi_docker_build as docker_build

    repository = pulumi.Output.concat(registry.address, f"/{recipe.repository}")
    cache = pulumi.Output.concat(repository, registry.cache)
    login = registry.login
    image = docker_build.Image(
        recipe.name,
        tags=[pulumi.Output.concat(repository, f":{version}")],
        push=True,
        # The preview of a pull request needs no Docker engine, and builds nothing.
        build_on_preview=False,
        context=docker_build.BuildContextArgs(location="."),
        dockerfile=docker_build.DockerfileArgs(location=recipe.dockerfile),
        build_args=build_args,
        # Laptops with another processor build what the nodes run.
        platforms=[docker_build.Platform.LINUX_AMD64],
        cache_from=[docker_build.CacheFromArgs(registry=docker_build.CacheFromRegistryArgs(ref=cache))],
        cache_to=[
            docker_build.CacheToArgs(
                registry=docker_build.CacheToRegistryArgs(
                    ref=cache, mode=docker_build.CacheMode.MAX, image_manifest=True, oci_media_types=True
                )
            )
        ],
        registries=[docker_build.RegistryArgs(address=login.server, username=login.user, password=login.password)]
        if login
        else None,
        opts=opts,
    )
    return image.ref
