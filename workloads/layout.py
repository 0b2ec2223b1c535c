"""Where things are on the shared volume, as the pods see it."""

#: Where the shared volume is mounted.
DATA = "/data"


def dataset_folder(name: str) -> str:
    """Shards and index of a dataset."""
    return f"{DATA}/datasets/{name}"


def run_folder(name: str) -> str:
    """Checkpoints, metrics, status and DONE of a run."""
    return f"{DATA}/runs/{name}"


def weights_folder(name: str) -> str:
    """Weights of a model of the Hugging Face hub, fetched once."""
    return f"{DATA}/models/{name}"


#: Name of the template of the pods through which people's machines reach the shared volume.
VOLUME_ACCESS = "volume-access"
#: Where TensorBoard listens in its pod.
TENSORBOARD_PORT = 6006
