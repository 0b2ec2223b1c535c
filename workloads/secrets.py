"""The configuration's tokens as Secrets: one for the environment of the pods that use one, one for image pulls."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s

from infra.buildx import credentials_name
from infra.cluster import Cluster
from infra.config import SecretsConfig, StackConfig, TrainingConfig
from workloads.objects import metadata
from workloads.workspace import Namespace

#: The hub's token, for the pods that fetch from there: a trainer is offline.
HUB = "HF_TOKEN"
#: The key of Weights & Biases, for the trainers that log there.
WANDB = "WANDB_API_KEY"
#: Environment variable -> field of the configuration.
VARIABLES = {HUB: "hugging_face_token", WANDB: "wandb_api_key"}


@dataclass(frozen=True)
class Tokens:
    """The given tokens; each pod gets those that it uses, and no other."""

    secret: k8s.core.v1.Secret | None
    names: frozenset[str]

    def environment(self, name: str) -> list[k8s.core.v1.EnvVarArgs]:
        """`env` of a container that uses a token; empty where it is not given."""
        if self.secret is None or name not in self.names:
            return []
        key = k8s.core.v1.SecretKeySelectorArgs(name=self.secret.metadata.name, key=name)
        return [k8s.core.v1.EnvVarArgs(name=name, value_from=k8s.core.v1.EnvVarSourceArgs(secret_key_ref=key))]


def store_tokens(config: SecretsConfig, cluster: Cluster, namespace: Namespace) -> Tokens:
    """The given tokens in a Secret, whose values are secret in Pulumi's state, too."""
    values = {name: getattr(config, field) for name, field in VARIABLES.items()}
    given = {name: pulumi.Output.secret(value.get_secret_value()) for name, value in values.items() if value}
    if not given:
        return Tokens(None, frozenset())
    secret = k8s.core.v1.Secret(
        "tokens",
        metadata=metadata("tokens", namespace.name),
        string_data=given,
        opts=pulumi.ResourceOptions(provider=cluster.provider, deleted_with=namespace.lifetime),
    )
    return Tokens(secret, frozenset(given))


def store_image_pull(
    name: str, config: StackConfig, cluster: Cluster, namespace: pulumi.Input[str], lifetime: pulumi.Resource
) -> list[k8s.core.v1.LocalObjectReferenceArgs] | None:
    """`image_pull_secrets` of a namespace's pods of the trainer's image; None when no credentials are configured."""
    login = config.secrets.image_pull
    if login is None:
        return None
    auth = base64.b64encode(login.get_secret_value().encode()).decode()
    where = config.image.ref or (cluster.registry.address if cluster.registry else "")
    content = pulumi.Output.from_input(where).apply(
        lambda name: json.dumps({"auths": {credentials_name(name): {"auth": auth}}})
    )
    secret = k8s.core.v1.Secret(
        name,
        metadata=metadata("image-pull", namespace),
        type="kubernetes.io/dockerconfigjson",
        string_data={".dockerconfigjson": pulumi.Output.secret(content)},
        opts=pulumi.ResourceOptions(provider=cluster.provider, deleted_with=lifetime),
    )
    return [k8s.core.v1.LocalObjectReferenceArgs(name=secret.metadata.name)]


def uses_wandb(training: TrainingConfig) -> bool:
    return bool(training.metrics.wandb_project)


def fingerprint(config: StackConfig) -> str:
    """8 of the 64 hash digits over a trainer's tokens: differs for other tokens, and reveals none."""
    wandb = config.secrets.wandb_api_key if uses_wandb(config.training) else None
    values = [wandb, config.secrets.image_pull]
    if not any(values):
        return ""
    text = "\0".join(value.get_secret_value() if value else "" for value in values)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
