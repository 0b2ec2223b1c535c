"""The faults of processes, which need what only the laboratory has: signals, its etcd, its name server, its files.

Each is a function of a Lab that breaks something at lab.fault(), checks how the pods react, and returns the exit codes
of the pods that are left at the end. Those that break a cluster's pods just as well are in on_pods.py.
"""

from __future__ import annotations

import contextlib
import math
import signal
import subprocess
import time

from faults.fault import PERIOD, SAME_LOSS, expect, fault
from faults.lab import Lab
from trainer.contract import DONE
from trainer.files import write_json


@fault("worker SIGKILL", steps_lost=PERIOD + 2)
def worker_killed(lab: Lab) -> list[int]:
    pods = lab.train()
    pods[1].signal(signal.SIGKILL, [pods[1].worker()])
    return lab.ended(pods)


@fault("agent SIGKILL", steps_lost=PERIOD + 2)
def agent_killed(lab: Lab) -> list[int]:
    """The init ends with the agent, and the pod with its init."""
    pods = lab.train()
    pods[1].signal(signal.SIGKILL, [pods[1].agent()])
    return lab.ended([pods[0], pods[2], lab.replace(pods[1])])


@fault("worker SIGSTOP", steps_lost=PERIOD + 2, seconds=45)
def frozen_worker(lab: Lab) -> list[int]:
    pods = lab.train()
    pods[1].signal(signal.SIGSTOP, [pods[1].worker()])
    return lab.ended(pods)


@fault("agent SIGSTOP", steps_lost=PERIOD + 2, seconds=45)
def frozen_agent(lab: Lab) -> list[int]:
    """Stop an agent while its worker and the others train on, for enough steps to notice the agent's silence."""
    pods = lab.train(steps=400)
    agent = pods[1].agent()
    pods[1].signal(signal.SIGSTOP, [agent])
    lab.until(lambda: pods[0].round >= 2, 40, "a round without the frozen agent")
    pods[1].signal(signal.SIGCONT, [agent])
    return lab.ended(pods)


@fault("agent and worker SIGSTOP", steps_lost=PERIOD + 2, seconds=45)
def frozen_pod(lab: Lab) -> list[int]:
    """Stop agent and worker, as when a machine hangs. They continue when the others are in another round."""
    pods = lab.train()
    pids = pods[1].everything()
    pods[1].signal(signal.SIGSTOP, pids)
    lab.until(lambda: pods[0].round >= 2, 40, "a round without the frozen pod")
    lab.more_steps()
    pods[1].signal(signal.SIGCONT, pids)
    return lab.ended(pods)


@fault("SIGTERM, machine gone 15 s later", seconds=15)
def notice(lab: Lab) -> list[int]:
    """Send SIGTERM, and remove the machine 15 s later, as GKE does with a Spot machine."""
    pods = lab.train()
    pods[0].terminate()
    time.sleep(15)
    expect(pods[0].code == 143, f"15 s after the notice the pod's exit code is {pods[0].code}, not 143")
    lab.network.cut("n0")
    return lab.ended(pods[1:])


@fault("etcd away for 30 s", seconds=2)
def etcd_killed(lab: Lab) -> list[int]:
    """Stop etcd for 30 s, twice the time after which a silent member counts as lost."""
    pods = lab.train(step=40, steps=400)
    lab.kill_server("etcd")
    time.sleep(30)
    lab.start_etcd()
    codes = lab.ended(pods)
    expect(max(pod.round for pod in pods) == 1, "the outage cost a round")
    return codes


@fault("etcd away for 60 s and a worker SIGKILL", steps_lost=PERIOD + 2, seconds=90)
def etcd_killed_with_a_worker(lab: Lab) -> list[int]:
    """Kill a worker while etcd is away for 60 s, as when its pod moves to another node. The new round must wait."""
    pods = lab.train()
    lab.kill_server("etcd")
    pods[1].signal(signal.SIGKILL, [pods[1].worker()])
    time.sleep(60)
    lab.start_etcd()
    return lab.ended(pods)


@fault("no DNS for 20 s, a worker SIGKILL and a new pod", steps_lost=PERIOD + 2, seconds=50)
def dns_outage(lab: Lab) -> list[int]:
    """Stop DNS for 20 s. A pod that starts meanwhile waits."""
    pods = lab.train(count=2, steps=600)
    lab.kill_server("dns")
    newcomer = lab.pod(2, steps=600)
    pods[1].signal(signal.SIGKILL, [pods[1].worker()])
    time.sleep(20)
    lab.start_dns()
    codes = lab.ended([*pods, newcomer])
    expect(newcomer.round > 0, "the new pod never trained")
    return codes


@fault("DeepSpeed: 2 -> 1 -> 2 pods")
def deepspeed_resized(lab: Lab) -> list[int]:
    """Resize the sharded optimizer state: two shards, one, two again."""
    stays, leaves = (lab.pod(machine, engine__name="deepspeed") for machine in (0, 1))
    lab.step(60)
    lab.fault()
    leaves.terminate()
    expect(lab.ended([leaves], 30) == [143], f"the pod that was asked to leave ended with {leaves.code}, not 143")
    lab.more_steps(20)
    lab.fault()
    codes = lab.ended([stays, lab.pod(2, engine__name="deepspeed")])
    sizes = [size for _, size, _ in stays.rounds]
    expect(sizes == [2, 1, 2], f"rounds of {sizes} pods, not of 2, 1 and 2")
    return codes


@fault("a pod after the end", seconds=math.inf)
def late_joiner(lab: Lab) -> list[int]:
    pods = lab.start(1)
    codes = lab.ended(pods)
    lab.fault()
    late = lab.pod(1)
    codes += lab.ended([late], 15)
    expect(late.round == 0, "the late joiner trained")
    return codes


@fault("all pods lost, newest checkpoint corrupt", steps_lost=2 * PERIOD + 2, seconds=60)
def corrupt_checkpoint(lab: Lab) -> list[int]:
    pods = lab.start(2)
    lab.step(PERIOD * 3)
    lab.until(lambda: len(checkpoints(lab)) >= 2, 60, "two checkpoints")
    lab.fault()
    for pod in pods:
        pod.kill()
    *_, older, newest = checkpoints(lab)
    file = lab.run_folder() / "checkpoints" / newest / "model" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    again = lab.start(2)
    codes = lab.ended(again)
    step = int(older.removeprefix("step-"))
    expect(f"event=resume step={step} " in again[0].log + again[1].log, f"not resumed from step {step}")
    return codes


@fault("disk full for 10 s, checkpoint due")
def disk_full(lab: Lab) -> list[int]:
    """Fill the run's volume for 10 s while a checkpoint is due."""
    folder = lab.run_folder()
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], check=True)
    try:
        pods = lab.train(2, PERIOD + 20)
        filler = folder / "filler"
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while file.write(b"\0" * 65536):
                pass
        time.sleep(10)
        filler.unlink()
        codes = lab.ended(pods)
        expect("event=checkpoint_failed" in pods[0].log + pods[1].log, "no checkpoint failed")
        done = lab.done()
    finally:
        lab.journal().end()
        for pod in lab.pods:
            pod.kill()
        subprocess.run(["umount", str(folder)], check=False)
    write_json(folder / DONE, done)
    return codes


@fault("NaN in the loss", codes=(42,), seconds=math.inf, done=False)
def not_a_number(lab: Lab) -> list[int]:
    pods = lab.start(2, optimizer__learning_rate=1e20, optimizer__clip=0, optimizer__warmup_steps=0)
    lab.fault()
    codes = lab.ended(pods)
    expect("diverged" in str(pods[0].last_words.get("message")), f"last words: {pods[0].last_words}")
    return codes


@fault("two jobs at once, a worker SIGKILL in one", steps_lost=PERIOD + 2)
def two_jobs(lab: Lab) -> list[int]:
    """Run two jobs with one etcd in one namespace; one job loses a worker."""
    first = [lab.pod(machine) for machine in (0, 1)]
    second = [lab.pod(machine, job="other") for machine in (2, 3)]
    lab.step(40)
    lab.step(40, job="other")
    lab.fault()
    first[1].signal(signal.SIGKILL, [first[1].worker()])
    codes = lab.ended([*first, *second])
    expect(max(pod.round for pod in second) == 1, "the other job noticed")
    difference = abs(lab.done()["validation_loss"] - lab.done("other")["validation_loss"])
    expect(difference <= SAME_LOSS, f"the two ended {difference:.4f} apart")
    return codes


@fault("rank 0's node lost three times", steps_lost=3 * PERIOD + 6, seconds=45)
def first_host_lost_three_times(lab: Lab) -> list[int]:
    """Cut off the machine of rank 0, which also hosts the workers' store, three times."""
    pods = lab.start()
    machine = 3
    for step in (60, 100, 140):  # between checkpoints
        lab.step(step)
        current = max(pod.round for pod in pods)
        first = next(pod for pod in pods if pod.round == current and pod.rounds[-1][-1] == 0)
        lab.fault()
        lab.network.cut(first.name.split("-")[1])
        pods.remove(first)
        lab.more_steps()
        first.kill()
        pods.append(lab.pod(machine))
        machine += 1
    return lab.ended(pods)


def checkpoints(lab: Lab) -> list[str]:
    """List the names of the complete checkpoints, oldest first."""
    return sorted(path.parent.name for path in lab.run_folder().glob("checkpoints/step-*/manifest.json"))


FAULTS = (
    worker_killed,
    agent_killed,
    frozen_worker,
    frozen_agent,
    frozen_pod,
    notice,
    etcd_killed,
    etcd_killed_with_a_worker,
    dns_outage,
    deepspeed_resized,
    late_joiner,
    corrupt_checkpoint,
    disk_full,
    not_a_number,
    two_jobs,
    first_host_lost_three_times,
)
