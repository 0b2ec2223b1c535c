"""DeepSpeed's ZeRO-1 and ZeRO-2: the optimizer's state (and the gradients) divided among the workers.

DeepSpeed partitions and exchanges; the rest is ours, so that both engines make the same update: the loss is scaled here
for fp16, learning rates come from optimizer.py. bf16 uses DeepSpeed's own mode: each worker has the weights in bf16 and
its part of them in fp32. No exchange then moves more than 2 bytes a value, and gradients of several micro-batches add
up in fp32. With fp32 and fp16 the weights are fp32 under autocast. DeepSpeed joins the existing process group, without
a hostfile or launcher of its own. Checkpoints hold whole fp32 tensors by parameter name, gathered and scattered through
DeepSpeed's own safe_get_full_* and safe_set_full_*.
"""

import contextlib
import logging
import os
from typing import Any

import torch
from torch import nn

from trainer import log
from trainer.checkpoint.format import Snapshot
from trainer.config import deepspeed_json
from trainer.config.schema import Config
from trainer.errors import UserError
from trainer.models import adapters
from trainer.parallel import optimizer
from trainer.parallel.communication import ring_bytes, wire
from trainer.parallel.engine import Outcome
from trainer.parallel.optimizer import Tensors
from trainer.parallel.world import World, ensure_group
from trainer.tasks.work import Work

KEYS = ("exp_avg", "exp_avg_sq")
TYPES = {"none": "fp32", "bf16": "bf16", "fp16": "fp16"}
SCALE, GROWTH_INTERVAL = 65536.0, 2000
"""The first loss scale, and the steps without an overflow after which it doubles; both are GradScaler's."""


class _Autocast(nn.Module):
    """The module with autocast inside: DeepSpeed switches off an autocast that it did not switch on itself."""

    def __init__(self, module: nn.Module, world: World, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self._device, self._dtype = module, world.device.type, dtype

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self._device, self._dtype, enabled=self._dtype != torch.float32):
            return self.module(*batch)


class DeepSpeedEngine:
    divided = False

    def __init__(self, work: Work, config: Config, world: World, dtype: torch.dtype) -> None:
        self._net, self._world, self._divisor = work.net, world, work.items_per_step
        self.equal_turns = config.engine.zero_stage == 2  # stage 2 exchanges in each backward pass, not only the last
        self._scaling = dtype == torch.float16
        self._scale, self._good = SCALE if self._scaling else 1.0, 0
        self._updates = 0
        self._bytes = 0
        settings = deepspeed_settings(work, config, world, dtype)
        exact = {name: value.data for name, value in adapters.trained(self._net).items()}
        [self._adam] = optimizer.make_optimizers(work.net, config.optimizer)
        self._engine = _initialise(_Autocast(work.module, world, dtype), self._adam, settings, world)
        self._zero = self._engine.optimizer
        if dtype == torch.bfloat16:  # its fp32 part is made from the bf16 weights: a resumed run would begin rounded
            from deepspeed.utils import safe_set_full_fp32_param

            for name, value in adapters.trained(self._net).items():
                safe_set_full_fp32_param(value, exact[name].to(value.device))
        del exact
        _make_state(self._zero, self._adam)
        parameters = sum(value.numel() for value in adapters.trained(self._net).values())
        width = 4 if settings["communication_data_type"] == "fp32" else 2
        # Each gradient is reduced to its owner, each weight gathered from it: each is half of a ring all-reduce.
        self._pass_bytes = ring_bytes(parameters * width, world.size) // 2
        self._update_bytes = ring_bytes(parameters * (2 if dtype == torch.bfloat16 else 4), world.size) // 2

    def accumulate(self, batch: tuple[torch.Tensor, ...], weight: float, last: bool) -> torch.Tensor:
        self._engine.set_gradient_accumulation_boundary(last)
        if self._scaling:
            self._zero.override_loss_scale(self._scale)
        total = self._engine(*batch) * weight
        self._engine.backward(total / self._divisor, scale_wrt_gas=False)
        if (last or self.equal_turns) and self._world.size > 1:
            self._bytes += self._pass_bytes
        return total.detach()

    def step(self, learning_rate: float) -> Outcome:
        optimizer.set_learning_rate([self._adam], learning_rate)
        if self._world.size > 1:
            self._bytes += self._update_bytes
        self._engine.step()
        # DeepSpeed skips an update if the norm of the whole gradient is not finite; it is equal on all workers.
        applied = self._engine.was_step_applied()
        self._updates += applied
        if self._scaling:
            self._good = self._good + 1 if applied else 0
            if not applied:
                self._scale /= 2
            elif self._good == GROWTH_INTERVAL:
                self._scale, self._good = self._scale * 2, 0
        norm = self._engine.get_global_grad_norm()
        norm = norm if isinstance(norm, torch.Tensor) else torch.tensor(float("nan") if norm is None else norm)
        return Outcome(norm, torch.tensor(0.0 if applied else 1.0))

    def state(self) -> Snapshot:
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        first, trained = self._world.first, adapters.trained(self._net)
        whole: dict[int, torch.Tensor] = {}
        tensors: Tensors = {}
        for name, value in trained.items():
            # Each goes to the first worker's host at once: a device has room for the worker's own part only.
            full = _whole(safe_get_full_fp32_param(value))
            if first:
                whole[id(value)] = full.cpu()
            for key in KEYS if self._updates else ():
                full = _whole(safe_get_full_optimizer_state(value, key))
                if first:
                    tensors.setdefault(name, {})[key] = full.cpu()
            if name in tensors:
                tensors[name]["step"] = torch.tensor(float(self._updates))
        named = self._net.state_dict(keep_vars=True)  # a tied tensor has two names: GPT-2's head is its embedding
        weights = {
            name: whole[id(named[name])]
            if id(named.get(name)) in whole
            else (value.float() if value.is_floating_point() else value)
            for name, value in (adapters.trainables(self._net).items() if first else ())
        }
        small = {"scaler": {"scale": self._scale, "growth_factor": 2.0, "backoff_factor": 0.5}} if self._scaling else {}
        if self._scaling:
            small["scaler"] |= {"growth_interval": GROWTH_INTERVAL, "_growth_tracker": self._good}
        return Snapshot(weights, tensors, small)

    def load(self, optimizer_state: Tensors, small: dict[str, Any]) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state

        if self._scaling and "scaler" in small:
            self._scale, self._good = small["scaler"]["scale"], small["scaler"]["_growth_tracker"]
        found = {name: tensors for name, tensors in optimizer_state.items() if {*KEYS, "step"} <= tensors.keys()}
        if not found:
            return
        self._updates = round(max(float(tensors["step"]) for tensors in found.values()))
        for flat in self._zero.single_partition_of_fp32_groups:
            self._adam.state[flat]["step"].fill_(self._updates)
        for name, value in adapters.trained(self._net).items():
            for key in KEYS:
                if name in found:
                    safe_set_full_optimizer_state(value, found[name][key].to(value.device, torch.float32), key)

    def take_communication(self) -> tuple[float, int]:
        """Seconds are unknown (0): DeepSpeed waits within its own passes."""
        sent, self._bytes = self._bytes, 0
        return 0.0, sent

    @property
    def loss_scale(self) -> float | None:
        return self._scale if self._scaling else None


def _whole(value: torch.Tensor | None) -> torch.Tensor:
    assert value is not None
    return value


def _make_state(zero: Any, adam: torch.optim.Optimizer) -> None:
    """Create AdamW's state now, not at its first update: a checkpoint fills it in place.

    DeepSpeed 0.19.8 looks for the state once, after the update of the first group, and so never finds the second's.
    """
    from deepspeed.utils import lazy_init_hp_params_optimizer_state

    for group, flat in zip(zero.bit16_groups, zero.single_partition_of_fp32_groups, strict=True):
        adam.state[flat]["step"] = torch.zeros((), dtype=torch.float32, device=flat.device)
        for key in KEYS:
            adam.state[flat][key] = torch.zeros_like(flat)
        lazy_init_hp_params_optimizer_state(group, flat, adam.state)
    zero._hp_optimizer_states_linked = True


def deepspeed_settings(work: Work, config: Config, world: World, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """The settings for deepspeed.initialize. Raises UserError if the JSON file contradicts the run."""
    problems: list[str] = []
    meaning = deepspeed_json.Meaning()
    if given := config.engine.deepspeed_config:
        path, meaning = deepspeed_json.display_path(given), deepspeed_json.read(given, problems)
        sequences, turns = work.samples_per_step, work.batches.per_step / world.size
        if meaning.sequences_per_step not in (None, sequences):
            problems.append(
                f"engine.deepspeed_config: {path} says train_batch_size {meaning.sequences_per_step}, but a step has "
                f"{sequences} sequences (tokens_per_step / sequence_length); make them equal or leave "
                "it out"
            )
        if meaning.accumulation not in (None, turns):
            problems.append(
                f"engine.deepspeed_config: {path} says gradient_accumulation_steps {meaning.accumulation}, but "
                f"{work.batches.per_step} micro-batches a step on {world.size} workers make {turns:g}; leave it out: "
                "it follows from the number of workers, which may change"
            )
        if world.first:
            for key in meaning.unused:
                log.event("deepspeed_config_warning", text=repr(f"{key} is not used"))
    if problems:
        raise UserError("\n".join(problems))
    bucket = config.communication.bucket_megabytes * 2**20 // 4
    zero = {
        # Overlap pays only with use_multi_rank_bucket_allreduce, and so with twice the bytes: without it DeepSpeed
        # waits for the device before each reduce (0.19.8, stage_1_and_2.py, average_tensor), 47 times a step of GPT-2
        # small on 16 workers.
        "overlap_comm": False,
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
        # Reduce each gradient to its owner, without an all-reduce that the others discard: half the bytes.
        "use_multi_rank_bucket_allreduce": False,
        **meaning.sections.get("zero_optimization", {}),
        "stage": config.engine.zero_stage,
    }
    if world.device.type == "cpu" and zero["overlap_comm"]:
        zero["overlap_comm"] = False
        if world.first:
            text = "zero_optimization.overlap_comm is not used: a CPU has no second stream to overlap with"
            log.event("deepspeed_config_warning", text=repr(text))
    return {
        **meaning.sections,
        "zero_optimization": zero,
        "train_micro_batch_size_per_gpu": 1,  # DeepSpeed only counts with it; the loop says where a step ends
        "gradient_accumulation_steps": 1,
        "gradient_allreduce_op": "sum",
        "gradient_clipping": config.optimizer.clip,
        "communication_data_type": TYPES[wire(config, world.device, dtype)],
        **({"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}} if dtype == torch.bfloat16 else {}),
        "zero_force_ds_cpu_optimizer": False,  # use our optimizer with offload_optimizer, too
        "steps_per_print": None,
    }


def _initialise(module: nn.Module, adam: torch.optim.Optimizer, settings: dict[str, Any], world: World) -> Any:
    if world.device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("LOCAL_SIZE", os.environ.get("LOCAL_WORLD_SIZE", "1"))
    os.environ.setdefault("LOCAL_RANK", str(world.local_rank))  # DeepSpeed needs it; one process has no launcher
    # The import prints, and so does the first look for operators; stdout is for our lines.
    with contextlib.redirect_stdout(None):
        import deepspeed
        import deepspeed.ops

        # Switch off its shared-memory all-reduce: it is for inference, and needs a compiler at each first start.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    ensure_group(world)
    from deepspeed.runtime.zero.config import ZERO_OPTIMIZATION

    # For bf16 with fp32 sums, stage 1 would take another optimizer of DeepSpeed, which exchanges in fp32.
    checks: Any = deepspeed.DeepSpeedEngine
    checks._do_optimizer_sanity_check = lambda *_: ZERO_OPTIMIZATION
    # It requires fp32 weights if neither of its modes is on, but the frozen model of an adapter is fp16 then.
    checks._DeepSpeedEngine__check_params = lambda *_: None
    for value in module.parameters():
        if not value.requires_grad:
            # Do not broadcast it at the start: every worker has read it.
            value.ds_optim_param = True  # pyrefly: ignore[missing-attribute]
    with contextlib.redirect_stdout(None):
        deepspeed.init_distributed(auto_mpi_discovery=False)
        engine, *_ = deepspeed.initialize(
            model=module,
            optimizer=adam,
            config=settings,
            dist_init_required=False,
        )
    return engine
