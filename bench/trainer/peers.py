"""What people train GPT-2 with otherwise, one mode in one process: `python -m bench.trainer.peers JSON`.

loop: a plain loop over transformers' GPT2LMHeadModel, model and loss compiled as one. Trainer: transformers' Trainer
with the same settings. Both: SDPA, no dropout, fused AdamW, clipping at 1, autocast for bf16, our trainer's batches.
The last line is {"seconds": [of each step], "cpu": [processor seconds of each], "losses": [of each]}.
"""

import json
import os
import sys
import time
from typing import Any


def main(arguments: list[str]) -> None:
    mode = json.loads(arguments[0])
    if mode["device"] == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    clock, losses = {"loop": loop, "Trainer": trainer}[mode["program"]](mode)
    print(json.dumps({"seconds": clock.seconds, "cpu": clock.cpu, "losses": losses}))


class Clock:
    """Of steps: wall and processor seconds."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.cpu: list[float] = []

    def begin(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def end(self) -> None:
        self.seconds.append(time.perf_counter() - self._began[0])
        self.cpu.append(time.process_time() - self._began[1])


def batches(mode: dict[str, Any]) -> Any:
    from trainer.data import Batches, open_dataset

    train = open_dataset(mode["data"]).train
    return Batches(train, mode["length"], mode["micro_batch"], mode["tokens_per_step"], seed=1337)


def network(mode: dict[str, Any]) -> Any:
    import torch

    from trainer import model

    torch.set_float32_matmul_precision("high")
    return model.build(mode["preset"], 50257, 50256, seed=1337).to(mode["device"])


def loop(mode: dict[str, Any]) -> tuple[Clock, list[float]]:
    import torch
    from torch.nn import functional as F

    net, data, device = network(mode), batches(mode), mode["device"]
    adam = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.1, betas=(0.9, 0.95), fused=True)

    def token_loss(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = net(input_ids=inputs).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")

    compute = torch.compile(token_loss) if mode["compiled"] else token_loss
    clock, losses = Clock(), []
    for step in range(mode["steps"]):
        clock.begin()
        loss = torch.zeros((), device=device)
        for number in range(data.per_step):
            inputs, targets = (torch.from_numpy(part).to(device) for part in data.get(step, number))
            with torch.autocast(device, torch.bfloat16, enabled=mode["precision"] == "bf16"):
                part = compute(inputs, targets) / mode["tokens_per_step"]
            part.backward()
            loss += part.detach()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        losses.append(loss.item())  # waits for the device
        clock.end()
    return clock, losses


def trainer(mode: dict[str, Any]) -> tuple[Clock, list[float]]:
    import torch
    import transformers

    net, data = network(mode), batches(mode)
    clock = Clock()

    class Windows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        """Trainer shifts labels itself and drops the last: it gets one token more than the window."""

        def __len__(self) -> int:
            return mode["steps"] * data.per_step * mode["micro_batch"]

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            batch, row = divmod(index, mode["micro_batch"])
            inputs, _ = data.get(*divmod(batch, data.per_step))
            ids = torch.from_numpy(inputs[row])
            return {"input_ids": ids, "labels": ids}

    class Timing(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            clock.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if mode["device"] == "cuda":
                torch.cuda.synchronize()
            clock.end()

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
        dataloader_pin_memory=False,
        train_sampling_strategy="sequential",
    )
    built = transformers.Trainer(net, settings, train_dataset=Windows(), callbacks=[Timing()])
    built.train()
    return clock, [entry["loss"] for entry in built.state.log_history if "loss" in entry]


if __name__ == "__main__":
    main(sys.argv[1:])
