"""The whole program, top to bottom: configuration -> cluster -> storage and image -> workloads -> outputs."""

import pulumi

from infra.config import ConfigError, parse
from infra.existing import existing_cluster
from infra.image import TrainerImage
from infra.settings import stack_values
from workloads.dataset import Dataset
from workloads.namespace import Namespace
from workloads.outputs import export
from workloads.rendezvous import Rendezvous
from workloads.storage import claim, volume
from workloads.tensorboard import TensorBoard
from workloads.training import Training

stack = pulumi.get_stack()
try:
    config = parse(stack_values(), stack)
    cluster = existing_cluster(config, stack)
except ConfigError as error:
    # One line a problem, no traceback, and nothing has been changed.
    raise pulumi.RunError(str(error)) from None

image = TrainerImage("trainer", cluster, ref=config.image.ref)

shared = volume(f"trainyard-{config.cluster.namespace}", cluster)
namespace = Namespace(config.cluster.namespace, cluster, depends_on=[shared] if shared else [])
data = claim(cluster, namespace, bound_to=shared)

rendezvous = Rendezvous("etcd", cluster, namespace)
dataset = Dataset("dataset", config.dataset, cluster, namespace, image, data)
training = Training(
    "training",
    config=config.training,
    workers=config.workers,
    dataset_config=config.dataset,
    cluster=cluster,
    namespace=namespace,
    image=image,
    dataset=dataset,
    rendezvous=rendezvous,
    claim=data,
)
if config.tensorboard.enabled:
    TensorBoard("tensorboard", cluster, namespace, image, data)

export(config, cluster, image, namespace, training)
