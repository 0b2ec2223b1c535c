"""The dataset Job: tokenises the text once, into shards on the shared volume."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence

import pulumi
import pulumi_kubernetes as k8s
from pydantic.alias_generators import to_camel

from infra.cluster import READER
from infra.config import DatasetConfig, StackConfig, TrainingConfig
from trainer.config.addresses import on_volume
from trainer.contract import EXIT_USAGE, STACK_KEYS
from workloads.layout import DATA, DATASETS, MODELS, dataset_folder, is_on_hub, weights_folder
from workloads.objects import await_annotations, ignore_disruptions, metadata, on_exit, pod_template
from workloads.pod import STAYS, resources, trainer_mounts
from workloads.secrets import HUB, Tokens
from workloads.workspace import Workspace


class Dataset(pulumi.ComponentResource):
    """Tokenised text. `pulumi up` waits for it, so that no accelerator waits for text."""

    directory: str
    """Folder of the shards in the pods."""
    job: k8s.batch.v1.Job
    account: k8s.core.v1.ServiceAccount | None
    """That may read the user's buckets; a stack has one."""
    fetches: list[list[str]]
    """Commands that fetch its models."""

    def __init__(
        self,
        name: str,
        config: StackConfig,
        workspace: Workspace,
        tokens: Tokens,
        users: Sequence[TrainingConfig],
        before: Sequence[Dataset] = (),
    ):
        """`users`: the trainings that read it, whose models are fetched; `before`: the stack's other datasets."""
        super().__init__("trainyard:workloads:Dataset", name, None, workspace.component())
        text = config.dataset
        self.directory = dataset_folder(text.name)
        command = prepare_command(config.training, text, self.directory)
        self.fetches = fetches = fetch_commands(users)
        words = [workspace.image.version, *command, *(word for fetch in fetches for word in fetch)]
        if config.training_name:  # a stack's only training had this name, and its Job may still be there
            words.append("several")
        identity = hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]
        self.account = before[0].account if before else self._account(workspace)
        # Two Jobs must not fetch a model into its folder at once.
        waits = [each.job for each in before if any(fetch in each.fetches for fetch in fetches)]
        self.job = k8s.batch.v1.Job(
            name,
            metadata=metadata(
                "dataset",
                workspace.namespace.name,
                f"dataset-{text.name}-{identity}",
                # The next `pulumi up` replaces a failed Job.
                await_annotations(text.timeout_minutes),
            ),
            spec=k8s.batch.v1.JobSpecArgs(
                # A retry helps when the storage or a server was unavailable, not with bad input.
                backoff_limit=2,
                # Text or a template that never comes to an end would hold the volume, and `up`, for ever.
                active_deadline_seconds=text.timeout_minutes * 60,
                # No second pod for input that no attempt can read.
                pod_failure_policy=k8s.batch.v1.PodFailurePolicyArgs(
                    rules=[on_exit("FailJob", EXIT_USAGE), ignore_disruptions()]
                ),
                template=pod_template(
                    "dataset", _pod(config, command, fetches, workspace, tokens, self.account), STAYS
                ),
            ),
            # Delete the old Job first: two Jobs must not write the same shards.
            opts=pulumi.ResourceOptions.merge(
                workspace.owned(self), pulumi.ResourceOptions(delete_before_replace=True, depends_on=waits)
            ),
        )
        self.register_outputs({"directory": self.directory})

    def _account(self, workspace: Workspace) -> k8s.core.v1.ServiceAccount | None:
        """The service account that may read the user's buckets; None where there are none."""
        annotations = workspace.cluster.reader_annotations
        if annotations is None:
            return None
        return k8s.core.v1.ServiceAccount(
            READER,
            metadata=metadata("dataset", workspace.namespace.name, READER, annotations),
            automount_service_account_token=False,
            opts=workspace.owned(self),
        )


def stack_keys(training: TrainingConfig) -> dict[str, str]:
    """Argument of the Job's commands -> the key of the stack that it comes from."""
    tokenizer = "dataset.tokenizer" if not training.model.name else "dataset.tokenizer or training.model.name"
    asked = "training.questionAnswering.train and .validation"
    arguments = ("--input", "--text-field", "--documents", "--validation-fraction")
    keys = {name: f"dataset.{to_camel(name.removeprefix('--').replace('-', '_'))}" for name in arguments}
    keys |= {"--tokenizer": tokenizer, "--output": "dataset.name", "--questions": asked, "--workers": "dataset.cpu"}
    return {**keys, "--model": "training.model.name", "--conversations": "training.task: finetune"}


def prepare_command(training: TrainingConfig, dataset: DatasetConfig, directory: str) -> list[str]:
    """The module that prepares the data of a task, with its arguments; for `python -m`.

    Relative inputs are paths on the shared volume.
    """
    inputs, model = [on_volume(text, DATA) for text in dataset.input], training.model.name
    if training.task == "question_answering":
        return ["trainer.fetch", "--questions", *inputs, "--output", directory]
    return [
        "trainer.prepare",
        *("--input", *inputs),
        *("--output", directory),
        *("--tokenizer", dataset.tokenizer or (weights_folder(model) if model else "gpt2")),
        *("--validation-fraction", str(dataset.validation_fraction)),
        *(word for key, value in dataset.reading.items() for word in (f"--{key.replace('_', '-')}", value)),
        *(["--conversations"] if training.task == "finetune" else []),
    ]


def fetch_commands(users: Sequence[TrainingConfig]) -> list[list[str]]:
    """Modules that fetch weights from the hub, with arguments, since the trainers are offline; none for a folder."""
    names = dict.fromkeys(name for each in users for name in (each.model.name, each.distillation.teacher))
    return [
        ["trainer.fetch", "--model", name, "--output", weights_folder(name)]
        for name in names
        if name and is_on_hub(name)
    ]


def prepare_datasets(config: StackConfig, workspace: Workspace, tokens: Tokens) -> dict[str, Dataset]:
    """The datasets of a stack's trainings by folder; one that several read is prepared once."""
    found: dict[str, Dataset] = {}
    for each in config.each_training:
        folder = each.dataset.name
        if folder not in found:
            name = f"dataset-{folder}" if config.trainings else "dataset"
            users = [other.training for other in config.each_training if other.dataset.name == folder]
            found[folder] = Dataset(name, each, workspace, tokens, users, list(found.values()))
    return found


def _pod(
    stack: StackConfig,
    command: list[str],
    fetches: list[list[str]],
    workspace: Workspace,
    tokens: Tokens,
    account: k8s.core.v1.ServiceAccount | None,
) -> k8s.core.v1.PodSpecArgs:
    config, keys = stack.dataset, json.dumps(stack_keys(stack.training))
    if command[0] == "trainer.prepare":  # a process for each core that the Job asks for; the bytes do not depend on it
        command = [*command, "--workers", str(math.ceil(config.cpu))]

    needs = resources(config.cpu, config.memory_gib)
    # Puts the reason of a failure into the pod's status, where Pulumi finds it.
    told = {"termination_message_policy": "FallbackToLogsOnError"}

    def reader(name: str, command: list[str]) -> k8s.core.v1.ContainerArgs:
        # It may reach the Hugging Face hub; by default the image is offline.
        variables, words = {"HF_HUB_OFFLINE": "0", STACK_KEYS: keys}, ["python", "-m", *command]
        hub = tokens.environment(HUB)
        return workspace.container(name, words, needs, variables, hub, volume_mounts=_reader_mounts(), **told)

    # Of folders that are not there, the kubelet would make root the owner.
    folders = workspace.container("folders", ["mkdir", "-p", DATASETS, MODELS], needs, **told)
    fetching = [reader("fetch" if n == 0 else f"fetch-{n + 1}", fetch) for n, fetch in enumerate(fetches)]

    return workspace.pod(
        reader("prepare", command),
        init_containers=[folders, *fetching],
        service_account_name=account.metadata.name if account else None,
        restart_policy="Never",
    )


def _reader_mounts() -> list[k8s.core.v1.VolumeMountArgs]:
    """What reads the web writes datasets and models alone: in the folders of runs is code that trainers execute."""
    own = [
        k8s.core.v1.VolumeMountArgs(name="data", mount_path=folder, sub_path=folder.removeprefix(f"{DATA}/"))
        for folder in (DATASETS, MODELS)
    ]
    return [*trainer_mounts(read_only=True), *own]
