"""The configuration's tokens as Secrets: one for the environment of pods, one for image pulls."""

from __future__ import annotations

import base64
import hashlib
import json

import pulumi
import pulumi_kubernetes as k8s

from infra.buildx import credentials_name
from infra.cluster import Cluster
from infra.config import SecretsConfig, StackConfig
from trainer.contract import CACHE_KEY
from workloads.certificates import CompileKey
from workloads.objects import metadata
from workloads.workspace import Namespace

#: Environment variable -> field of the configuration.
VARIABLES = {"HF_TOKEN": "hugging_face_token", "WANDB_API_KEY": "wandb_api_key"}


def store_tokens(config: SecretsConfig, cluster: Cluster, namespace: Namespace) -> k8s.core.v1.Secret | None:
    """The Secret; None when no token is configured. Its values are secret in Pulumi's state, too."""
    values = {name: getattr(config, field) for name, field in VARIABLES.items()}
    given = {name: pulumi.Output.secret(value.get_secret_value()) for name, value in values.items() if value}
    if not given:
        return None
    return k8s.core.v1.Secret(
        "tokens",
        metadata=metadata("tokens", namespace.name),
        string_data=given,
        opts=pulumi.ResourceOptions(provider=cluster.provider, deleted_with=namespace.lifetime),
    )


def store_image_pull(config: StackConfig, cluster: Cluster, namespace: Namespace) -> k8s.core.v1.Secret | None:
    """The credentials with which nodes pull the trainer's image; None when none are configured."""
    login = config.secrets.image_pull
    if login is None:
        return None
    auth = base64.b64encode(login.get_secret_value().encode()).decode()
    where = config.image.ref or (cluster.registry.address if cluster.registry else "")
    content = pulumi.Output.from_input(where).apply(
        lambda name: json.dumps({"auths": {credentials_name(name): {"auth": auth}}})
    )
    return k8s.core.v1.Secret(
        "image-pull",
        metadata=metadata("image-pull", namespace.name),
        type="kubernetes.io/dockerconfigjson",
        string_data={".dockerconfigjson": pulumi.Output.secret(content)},
        opts=pulumi.ResourceOptions(provider=cluster.provider, deleted_with=namespace.lifetime),
    )


def make_compile_key(namespace: Namespace, opts: pulumi.ResourceOptions) -> k8s.core.v1.Secret:
    """The key with which trainers on accelerators sign compiled code: the storage is open to other pods."""
    made = CompileKey("compile-key", pulumi.ResourceOptions(parent=opts.parent))
    return k8s.core.v1.Secret(
        "compile-key",
        metadata=metadata("trainer", namespace.name),
        string_data={CACHE_KEY: made.key},
        opts=opts,
    )


def environment_of(*secrets: k8s.core.v1.Secret | None) -> list[k8s.core.v1.EnvFromSourceArgs] | None:
    """`env_from` of a container."""
    given = [secret for secret in secrets if secret is not None]
    sources = [k8s.core.v1.SecretEnvSourceArgs(name=secret.metadata.name) for secret in given]
    return [k8s.core.v1.EnvFromSourceArgs(secret_ref=source) for source in sources] or None


def fingerprint(config: SecretsConfig) -> str:
    """8 of the 64 hash digits over all tokens: differs for other tokens, and reveals none."""
    # image_pull counts only where it is set: an unset one must not rename running Jobs.
    values = [getattr(config, field) for field in VARIABLES.values()] + [config.image_pull] * bool(config.image_pull)
    if not any(values):
        return ""
    text = "\0".join(value.get_secret_value() if value else "" for value in values)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
