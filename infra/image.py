"""The trainer's image: built from trainer/Dockerfile, pushed, and referred to by digest.

It is new only when a file that enters it changed: its tag is a hash of those files, known at preview. Two builders
stand behind one component: BuildKit through pulumi-docker-build, and buildah for machines without a Docker engine.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pulumi

from infra.cluster import Cluster, Registry

ROOT = Path(__file__).resolve().parent.parent
#: What enters the image; .dockerignore lets the same paths through.
CONTEXT = ("pyproject.toml", "requirements/bootstrap.txt", "requirements/trainer.txt", "trainer")
DOCKERFILE = "trainer/Dockerfile"
REPOSITORY = "trainyard/trainer"


class TrainerImage(pulumi.ComponentResource):
    """The trainer's image in the cluster's registry."""

    version: str
    """Hash of all that enters the image, 12 hex digits; of a prebuilt image, of its digest."""
    reference: pulumi.Output[str]
    """name@sha256:digest, for pod specs."""

    def __init__(self, name: str, cluster: Cluster, ref: str | None = None, opts: pulumi.ResourceOptions | None = None):
        super().__init__("trainyard:infra:TrainerImage", name, None, opts)
        if cluster.builder == "prebuilt" or cluster.registry is None:
            assert ref is not None, "infra.config lets no prebuilt image without a reference through"
            self.version = ref.rsplit(":", 1)[1][:12]
            self.reference = pulumi.Output.from_input(ref)
        else:
            build_args = {"BASE_IMAGE": cluster.base_image} if cluster.base_image else {}
            self.version = content_hash(build_args)
            build = _buildah if cluster.builder == "buildah" else _buildkit
            self.reference = build(
                name, cluster.registry, self.version, build_args, pulumi.ResourceOptions(parent=self)
            )
        self.register_outputs({"reference": self.reference})


def content_hash(build_args: dict[str, str], root: Path = ROOT) -> str:
    """12 hex digits over the names and contents of the files that enter the image, and over the build arguments."""
    digest = hashlib.sha256()
    for path in context_files(root):
        digest.update(f"{path.relative_to(root)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    digest.update(repr(sorted(build_args.items())).encode())
    return digest.hexdigest()[:12]


def context_files(root: Path = ROOT) -> list[Path]:
    """The files that enter the image, sorted."""
    found: list[Path] = []
    for entry in CONTEXT:
        path = root / entry
        found += [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sorted(file for file in found if "__pycache__" not in file.parts)


def _buildah(
    name: str, registry: Registry, version: str, build_args: dict[str, str], opts: pulumi.ResourceOptions
) -> pulumi.Output[str]:
    # Only this builder needs it, and it imports the machinery of dynamic providers.
    from infra.buildah import BuildahImage

    image = BuildahImage(
        name,
        target=pulumi.Output.concat(registry.address, f"/{REPOSITORY}:{version}"),
        dockerfile=DOCKERFILE,
        build_args=build_args,
        insecure=registry.insecure,
        opts=opts,
    )
    return image.reference


def _buildkit(
    name: str, registry: Registry, version: str, build_args: dict[str, str], opts: pulumi.ResourceOptions
) -> pulumi.Output[str]:
    # Imported here: a stack that builds with buildah, or not at all, needs neither the package nor its plugin.
    import pulumi_docker_build as docker_build

    repository = pulumi.Output.concat(registry.address, f"/{REPOSITORY}")
    cache = pulumi.Output.concat(repository, ":cache")
    image = docker_build.Image(
        name,
        tags=[pulumi.Output.concat(repository, f":{version}")],
        push=True,
        # The preview of a pull request needs no Docker engine, and builds nothing.
        build_on_preview=False,
        context=docker_build.BuildContextArgs(location="."),
        dockerfile=docker_build.DockerfileArgs(location=DOCKERFILE),
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
        opts=opts,
    )
    return image.ref
