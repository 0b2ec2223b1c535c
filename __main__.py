"""The whole program, top to bottom: configuration, cluster, storage and image, workloads, outputs."""

import os

import pulumi

from infra.changes import hold, remember
from infra.clouds import cloud_of
from infra.config import ConfigError
from infra.image import TRAINER, ContainerImage
from infra.parse import parse
from infra.settings import refuse_placeholders, stack_values, warn_of_tokens
from infra.trainings import plan
from workloads.dataset import prepare_datasets
from workloads.gpu_check import GpuCheck
from workloads.layout import ONLY_VOLUME
from workloads.node_software import install_node_software
from workloads.outputs import export
from workloads.rendezvous import Rendezvous
from workloads.requeue import Requeue, may_hold
from workloads.secrets import store_image_pull, store_tokens
from workloads.storage import claim_volume, declare_volume_access, make_volume, serve_storage
from workloads.tensorboard import TensorBoard
from workloads.training import Training, tell_new_folders
from workloads.workspace import Namespace, Workspace

stack = pulumi.get_stack()
try:
    config = parse(values := stack_values(), stack)
    if __name__ == "__main__":  # under Pulumi; a recording (review/recording.py) builds nothing
        refuse_placeholders(config, stack)
        warn_of_tokens(values, stack)
        for line in plan(config):
            pulumi.info(line)
    built = hold(config, stack)
    cluster = cloud_of(config).cluster(config, stack)
except ConfigError as error:
    # One line per problem and no traceback; nothing has been changed yet.
    raise pulumi.RunError(str(error)) from None

image = ContainerImage(TRAINER, cluster, ref=config.image.ref, build_args={"TORCH": config.torch})
cluster = serve_storage(cluster, config, image)
shared = make_volume(f"trainyard-{config.cluster.namespace}", cluster)
namespace = Namespace(config, cluster, depends_on=[shared] if shared else [])
claim = claim_volume(cluster, namespace, bound_to=shared)
pull = store_image_pull("image-pull", config, cluster, namespace.name, namespace.lifetime)
workspace = Workspace(cluster, namespace, image, claim, pull)
remember(config, values, cluster, claim)
tokens = store_tokens(config.secrets, cluster, namespace)

software = install_node_software(cluster)
members = sum(each.workers.count + each.workers.spares for each in config.each_training)
rendezvous = Rendezvous("etcd", config.rendezvous, members, workspace)
# `trainyard up --data` makes the volume, uploads, and comes again for what reads the data.
reads = os.environ.get(ONLY_VOLUME) != "true"
datasets = prepare_datasets(config, workspace, tokens) if reads else {}
check = GpuCheck(config, workspace, after=software) if config.check.enabled and reads else None
first = [*software, check] if check else software
tell_new_folders(config, values, built)
trainings = [
    Training(each, workspace, datasets[each.dataset.name], rendezvous, tokens, after=first, built=built)
    for each in (config.each_training if reads else ())
]
if trainings and may_hold(config, cluster.workers):
    Requeue(config, workspace, trainings)
declare_volume_access(workspace)
if config.tensorboard.enabled:
    TensorBoard("tensorboard", workspace)

export(config, workspace, trainings, check)
if __name__ == "__main__" and reads:
    trainings[0].warn_of_waiting(stack)  # the others may have to wait for it
