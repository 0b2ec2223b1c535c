"""The steps of the proof, in the order in which they are played."""

from __future__ import annotations

from prove import bring_up, close, faults, volume
from prove.engine import Step

STEPS = (
    Step("doctor", "nothing stands in the way", bring_up.doctor, needed=True, short=True),
    Step("up", "pulumi up", bring_up.up, needed=True, short=True),
    Step("training", "the loss falls", bring_up.training, needed=True, short=True),
    Step("nodes", "worker nodes came from zero", bring_up.nodes_from_zero),
    Step("accelerators", "driver and device plugin", bring_up.accelerators),
    Step("exchange", "bus bandwidth between nodes", bring_up.exchange),
    Step("volume", "two pods write, rename and read on the shared volume", volume.two_pods, short=True),
    Step("volume-nodes", "the same from two nodes", volume.two_nodes),
    Step("egress", "an exporter reaches its server", volume.egress),
    Step("pod", "a worker's pod is killed", faults.pod_killed, short=True),
    Step("node", "a node is lost", faults.node_lost),
    Step("nfs", "the NFS server's pod is killed", faults.nfs_server_killed),
    Step("resize", "workers are added and taken away", faults.resize),
    Step("spot", "the cloud takes a Spot machine back", faults.spot),
    Step("own-data", "own text is uploaded and trained on", volume.own_data, short=True),
    Step("model", "the model is fetched and loads in transformers", volume.model_out, short=True),
    Step("no-changes", "preview shows no change", close.no_changes, short=True),
    Step("destroy", "pulumi destroy", close.destroy, closing=True, destroys=True, short=True),
    Step("leftovers", "nothing is left", close.leftovers, closing=True, destroys=True, short=True),
    Step("cost", "what it cost", close.cost, closing=True, short=True),
)


def steps(short: bool) -> tuple[Step, ...]:
    return tuple(step for step in STEPS if step.short or not short)
