"""Other ways to train GPT-2, one mode in one process: `python -m bench.trainer.peers JSON`.

loop: a plain loop over transformers' GPT2LMHeadModel, with model and loss compiled together. nanoGPT: its model
(nano.py) in the same loop, as it is or with GPT-2's biases. Trainer: transformers' Trainer with the same settings. All
use SDPA, no dropout, fused AdamW, clipping at 1, autocast for bf16 and our trainer's batches, on an accelerator
prefetched from pinned memory. The last line is {"seconds": [of each step], "cpu": [CPU seconds of each step], "losses":
[of each step], "waits": [seconds of each step in which the host fetched batches], "memory": peak bytes of the device or
the process}.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

BIASED = "nanoGPT with biases"


def main(arguments: list[str]) -> None:
    mode = json.loads(arguments[0])
    if mode["device"] == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    from trainer.train.metrics import peak_memory

    clock, losses = {"loop": loop, "nanoGPT": nano, BIASED: nano, "Trainer": trainer}[mode["program"]](mode)
    most = peak_memory(torch.device(mode["device"]))
    figures = {"seconds": clock.seconds, "cpu": clock.cpu, "losses": losses, "waits": clock.waits, "memory": most}
    print(json.dumps(figures))


class Clock:
    """Wall and CPU seconds of each step, and the part of its wall seconds in which the host waited for batches."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        self.waits: list[float] = []

    def begin(self) -> None:
        self._began, self._waited = (time.perf_counter(), time.process_time()), 0.0

    def waited(self, seconds: float) -> None:
        self._waited += seconds

    def step(self) -> None:
        """End a step, and begin the next."""
        self.seconds.append(time.perf_counter() - self._began[0])
        self.cpu.append(time.process_time() - self._began[1])
        self.waits.append(self._waited)
        self.begin()


def batches(mode: dict[str, Any]) -> Any:
    from trainer.data.batches import open_dataset, text_batches

    train = open_dataset(mode["data"]).train
    return text_batches(train, mode["length"], mode["micro_batch"], mode["tokens_per_step"], seed=1337)


def network(mode: dict[str, Any]) -> Any:
    from trainer.models import networks

    return networks.from_preset(mode["preset"], 50257, 50256, seed=1337).to(mode["device"])


def loop(mode: dict[str, Any]) -> tuple[Clock, list[float]]:
    import torch
    from torch.nn import functional as F

    net = network(mode)

    def mean_loss(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = net(input_ids=inputs).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    return steps(mode, net, mean_loss)


def nano(mode: dict[str, Any]) -> tuple[Clock, list[float]]:
    from bench.trainer.nano import Net

    net = Net(mode["preset"], seed=1337, bias=mode["program"] == BIASED).to(mode["device"])
    return steps(mode, net, net)


def steps(mode: dict[str, Any], net: Any, mean_loss: Callable[..., Any]) -> tuple[Clock, list[float]]:
    import torch

    torch.set_float32_matmul_precision("high")
    data, device, clock = batches(mode), mode["device"], Clock()
    adam = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.1, betas=(0.9, 0.95), fused=True)
    compute = torch.compile(mean_loss) if mode["compiled"] else mean_loss

    def fetched() -> Iterator[list[torch.Tensor]]:
        for step in range(mode["steps"]):
            for number in range(data.per_step):
                parts = [torch.from_numpy(part) for part in data.get(step, number)]
                if device == "cuda":
                    parts = [part.contiguous().pin_memory() for part in parts]
                yield [part.to(device, non_blocking=True) for part in parts]

    def following() -> Any:
        began = time.perf_counter()
        found = next(source, None)
        clock.waited(time.perf_counter() - began)
        return found

    source, losses = fetched(), []
    clock.begin()
    batch = following()
    for _ in range(mode["steps"]):
        loss = torch.zeros((), device=device)
        for _ in range(data.per_step):
            with torch.autocast(device, torch.bfloat16, enabled=mode["precision"] == "bf16"):
                part = compute(*batch) / data.per_step
            part.backward()
            batch = following()  # while an accelerator computes
            loss += part.detach()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        losses.append(loss.item())  # waits for the device
        clock.step()
    return clock, losses


def trainer(mode: dict[str, Any]) -> tuple[Clock, list[float]]:
    import torch
    import transformers

    torch.set_float32_matmul_precision("high")
    net, data = network(mode), batches(mode)
    clock = Clock()

    class Windows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        """Trainer shifts the labels itself: it computes all logits of a window, but leaves the last out of the loss."""

        def __len__(self) -> int:
            return mode["steps"] * data.per_step * mode["micro_batch"]

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            batch, row = divmod(index, mode["micro_batch"])
            if row == 0:
                began = time.perf_counter()
                self.inputs, _ = data.get(*divmod(batch, data.per_step))
                clock.waited(time.perf_counter() - began)
            ids = torch.from_numpy(self.inputs[row])
            return {"input_ids": ids, "labels": ids}

    class Timing(transformers.TrainerCallback):
        """Times from one step's end to the next, because Trainer fetches the batches before it begins a step."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            clock.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if mode["device"] == "cuda":
                torch.cuda.synchronize()
            clock.step()

    settings = transformers.TrainingArguments(
        output_dir=mode["scratch"],
        per_device_train_batch_size=mode["micro_batch"],
        gradient_accumulation_steps=data.per_step,
        max_steps=mode["steps"],
        learning_rate=1e-4,
        weight_decay=0.1,
        adam_beta2=0.95,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        bf16=mode["precision"] == "bf16",
        torch_compile=mode["compiled"],
        use_cpu=mode["device"] == "cpu",
        save_strategy="no",
        logging_strategy="steps",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=mode["device"] == "cuda",
        train_sampling_strategy="sequential",
    )
    built = transformers.Trainer(net, settings, train_dataset=Windows(), callbacks=[Timing()])
    built.train()
    return clock, [entry["loss"] for entry in built.state.log_history if "loss" in entry]


if __name__ == "__main__":
    main(sys.argv[1:])
