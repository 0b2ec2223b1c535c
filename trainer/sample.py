"""Text from a run's newest checkpoint: `python -m trainer.sample --run DIR --prompt TEXT`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from trainer.checkpoint import newest
from trainer.errors import EXIT_USAGE, UserError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.sample", description="Generate text from a run.")
    parser.add_argument("--run", required=True, type=Path, help="run directory")
    parser.add_argument("--prompt", default="The", help="how the text begins")
    parser.add_argument("--tokens", type=int, default=120, help="tokens to add")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest token each time")
    parser.add_argument("--top-k", type=int, default=50, help="draw from the k likeliest tokens; 0: from all")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same text")
    options = parser.parse_args(arguments)
    try:
        if options.tokens < 1 or options.temperature < 0 or options.top_k < 0:
            raise UserError("--tokens must be positive, --temperature and --top-k not negative")
        print(sample(options.run, options.prompt, options.tokens, options.temperature, options.top_k, options.seed))
    except UserError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    return 0


def sample(run: Path, prompt: str, tokens: int, temperature: float, top_k: int, seed: int) -> str:
    """The prompt and its continuation by the newest checkpoint of `run`. Raises UserError when there is none."""
    found = newest(run) if run.is_dir() else None
    if found is None:
        raise UserError(
            f"--run {run}: holds no checkpoint that verifies; give the directory of a run that has saved one"
        )
    from tokenizers import Tokenizer

    from trainer.model import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(found.path / "model")
    tokenizer = Tokenizer.from_file(str(found.path / "model" / "tokenizer.json"))
    return generate(model, tokenizer, prompt, tokens, temperature, top_k, seed)


def generate(model: Any, tokenizer: Any, prompt: str, tokens: int, temperature: float, top_k: int, seed: int) -> str:
    """Continue `prompt` by up to `tokens` tokens with a key-value cache, within the model's positions."""
    import torch

    positions = model.config.n_positions
    ids = tokenizer.encode(prompt).ids or [model.config.bos_token_id]
    ids = ids[-(positions - 1) :]
    inputs = torch.tensor([ids], device=model.device)
    chosen = (
        {"do_sample": True, "temperature": temperature, "top_k": top_k} if temperature > 0 else {"do_sample": False}
    )
    training = model.training
    model.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        output = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=min(tokens, positions - len(ids)),
            use_cache=True,
            pad_token_id=model.config.eos_token_id,
            **chosen,
        )
    model.train(training)
    return tokenizer.decode(output[0].tolist())


if __name__ == "__main__":
    sys.exit(main())
