"""The rows of the fault matrix: each fault, and how the training must end."""

from __future__ import annotations

import math

from chaos import faults
from chaos.faults import PERIOD
from chaos.row import Row

ROWS = (
    Row("worker-killed", "worker SIGKILL", faults.worker_killed, steps_lost=PERIOD + 2),
    Row("agent-killed", "agent SIGKILL", faults.agent_killed, steps_lost=PERIOD + 2),
    Row("pod-killed", "pod deleted without grace", faults.pod_deleted_at_once, steps_lost=PERIOD + 2),
    Row("pod-deleted", "pod deleted with grace", faults.pod_deleted, seconds=20),
    Row("node-lost", "node lost, no FIN", faults.node_lost, steps_lost=PERIOD + 2, seconds=45),
    Row("frozen-worker", "worker SIGSTOP", faults.frozen_worker, steps_lost=PERIOD + 2, seconds=45),
    Row("frozen-agent", "agent SIGSTOP", faults.frozen_agent, steps_lost=PERIOD + 2, seconds=45),
    Row("frozen-pod", "agent and worker SIGSTOP", faults.frozen_pod, steps_lost=PERIOD + 2, seconds=45),
    Row("notice", "SIGTERM, machine gone 15 s later", faults.notice, seconds=15),
    Row("etcd-killed", "etcd away for 30 s", faults.etcd_killed, seconds=2),
    Row(
        "etcd-and-worker",
        "etcd away for 60 s and a worker SIGKILL",
        faults.etcd_killed_with_a_worker,
        (0,),
        PERIOD + 2,
        90,
    ),
    Row("etcd-data-lost", "etcd's data lost", faults.etcd_data_lost, seconds=30),
    Row("dns-outage", "no DNS for 20 s, a worker SIGKILL and a new pod", faults.dns_outage, (0,), PERIOD + 2, 50),
    Row("scale-out", "1 -> 3 pods", faults.scale_out),
    Row("scale-in", "3 -> 1 pods", faults.scale_in, seconds=15),
    Row("deepspeed", "DeepSpeed: 2 -> 1 -> 2 pods", faults.deepspeed_resized),
    Row("late-joiner", "a pod after the end", faults.late_joiner, seconds=math.inf),
    Row(
        "corrupt-checkpoint",
        "all pods lost, newest checkpoint corrupt",
        faults.corrupt_checkpoint,
        (0,),
        2 * PERIOD + 2,
        60,
    ),
    Row("disk-full", "disk full for 10 s, checkpoint due", faults.disk_full, seconds=30),
    Row("nan", "NaN in the loss", faults.not_a_number, (42,), seconds=math.inf, done=False),
    Row("two-jobs", "two jobs at once, a worker SIGKILL in one", faults.two_jobs, steps_lost=PERIOD + 2),
    Row(
        "first-host-lost",
        "rank 0's node lost three times",
        faults.first_host_lost_three_times,
        (0,),
        3 * PERIOD + 6,
        45,
    ),
)
