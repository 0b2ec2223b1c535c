"""Where things are on the shared volume, as the pods see it."""

from infra.sections import DATA as DATA

DATASETS = f"{DATA}/datasets"
MODELS = f"{DATA}/models"


def dataset_folder(name: str) -> str:
    """Shards and index of a dataset."""
    return f"{DATASETS}/{name}"


def run_folder(name: str) -> str:
    """Checkpoints, metrics, status and DONE of a run."""
    return f"{DATA}/runs/{name}"


def is_on_hub(name: str) -> bool:
    """Whether a model's name is one of the Hugging Face hub, not a folder on the volume."""
    return not name.startswith("/")


def weights_folder(name: str) -> str:
    """Where pods find a model; one of the Hugging Face hub is fetched once, to a folder of its name."""
    return f"{MODELS}/{name}" if is_on_hub(name) else name


#: A worker's volume with the training's configuration, a ConfigMap.
CONFIGURED = "configuration"
#: Label of the objects of one of several trainings: its name.
TRAINING = "trainyard/training"
#: Annotation of pods with queued nodes: the name of their ProvisioningRequest.
CONSUMES = "autoscaling.x-k8s.io/consume-provisioning-request"
#: Name of the PodTemplate of pods through which users' machines reach the shared volume.
VOLUME_ACCESS = "volume-access"
#: Their memory, which a system node has: enough to read a model of 180 million parameters (cli/model_pod.py).
ACCESS_GIB = 2.0
#: Environment variable of a `pulumi up` that brings only what an upload needs: "true".
ONLY_VOLUME = "TRAINYARD_ONLY_VOLUME"
#: Where TensorBoard listens in its pod.
TENSORBOARD_PORT = 6006
