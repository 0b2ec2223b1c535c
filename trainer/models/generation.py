"""Text from a causal language model."""

from collections.abc import Callable
from typing import Any

import torch

from trainer.models import networks


def continuations(model: Any, tokenizer: Any, prompt: str, tokens: int, **drawn: Any) -> list[str]:
    """Generate texts that begin with `prompt`. `drawn`: as for `continued`."""
    ids = tokenizer.encode(prompt).ids or [model.config.bos_token_id or ends(model)[0] or 0]
    return [tokenizer.decode(row) for row in continued(model, ids, tokens, **drawn)]


def ends(model: Any) -> list[Any]:
    """The model's end-of-text token ids; [None] if it has none."""
    end = model.generation_config.eos_token_id
    return end if isinstance(end, list) else [end]


class _Heard:
    """What transformers tells of a generation: the prompt, then each token."""

    def __init__(self, told: Callable[[int], None]) -> None:
        self._told, self._begun = told, False

    def put(self, ids: torch.Tensor) -> None:
        if self._begun:
            self._told(int(ids))
        self._begun = True

    def end(self) -> None:
        pass


def continued(
    model: Any,
    ids: list[int],
    tokens: int,
    *,
    seed: int,
    temperature: float = 0.8,
    top_k: int = 50,
    top_p: float = 1.0,
    count: int = 1,
    told: Callable[[int], None] | None = None,
) -> list[list[int]]:
    """Generate `count` rows that begin with the prompt, with a key-value cache, within the model's positions.

    A prompt that leaves no room for a new token is cut at its start. `told` hears each token of a single row as it is
    drawn.
    """
    positions = networks.positions(model.config)
    if positions is not None:
        ids = ids[-(positions - 1) :]
        tokens = min(tokens, positions - len(ids))
    inputs = torch.tensor([ids], device=model.device)
    chosen: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        chosen = {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    training = model.training
    model.eval()
    # An adapter is fp32 inside a model that may be half precision.
    half = torch.autocast(model.device.type, model.dtype, enabled=model.dtype != torch.float32)
    # Run eagerly: layers that training compiled would recompile for each cache length, minutes for a short text.
    plain = torch.compiler.set_stance("force_eager")
    with torch.no_grad(), half, plain, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        output = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=tokens,
            use_cache=True,
            pad_token_id=ends(model)[0],
            num_return_sequences=count,
            streamer=_Heard(told) if told else None,
            **chosen,
        )
    model.train(training)
    return output.tolist()
