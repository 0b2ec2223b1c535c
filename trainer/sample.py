"""Text from a trained model: `python -m trainer.sample --run DIR --prompt TEXT`."""

import argparse
import sys
from typing import Any

from trainer.errors import EXIT_USAGE, UserError
from trainer.models import source as sources


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.sample", description="Continue a text with a trained model."
    )
    sources.add_options(parser)
    parser.add_argument("--prompt", default="The", help="how the text begins; - reads it from stdin")
    parser.add_argument("--tokens", type=int, default=120, help="most tokens to add")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest token each time")
    parser.add_argument("--top-k", type=int, default=50, help="draw from the k likeliest tokens; 0: from all")
    parser.add_argument(
        "--top-p", type=float, default=1.0, help="draw from the likeliest that make up this probability"
    )
    parser.add_argument("--seed", type=int, default=0, help="same seed, same text")
    parser.add_argument("--count", type=int, default=1, help="texts to draw")
    options = parser.parse_args(arguments)
    try:
        _check(options)
        prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
        source = sources.from_options(options)
        texts = sample(
            source,
            prompt,
            options.tokens,
            options.temperature,
            options.top_k,
            options.seed,
            options.top_p,
            options.count,
        )
    except UserError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    print("\n---\n".join(texts))
    return 0


def _check(options: argparse.Namespace) -> None:
    for name in ("tokens", "count"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} {getattr(options, name)}: give a positive number")
    for name in ("temperature", "top_k"):
        if getattr(options, name) < 0:
            raise UserError(f"--{name.replace('_', '-')} {getattr(options, name)}: give 0 or more")
    if not 0 < options.top_p <= 1:
        raise UserError(f"--top-p {options.top_p}: give a probability above 0, up to 1")
    if options.count > 1 and options.temperature == 0:
        raise UserError("--count: with --temperature 0 every text is the same; raise the temperature")


def sample(
    source: sources.Source,
    prompt: str,
    tokens: int,
    temperature: float = 0.8,
    top_k: int = 50,
    seed: int = 0,
    top_p: float = 1.0,
    count: int = 1,
) -> list[str]:
    """`count` texts that begin with the prompt. Raises UserError when the model or its tokenizer is missing."""
    from trainer.data import tokenizer as tokenizers_of_text

    net = sources.load_language_model(source)
    tokenizer = tokenizers_of_text.load(source.model)
    length, positions = len(tokenizer.encode(prompt).ids), net.config.n_positions
    if length + tokens > positions:
        print(f"note: {length} + {tokens} tokens exceed the model's {positions} positions; shortened", file=sys.stderr)
    return continuations(net, tokenizer, prompt, tokens, temperature, top_k, seed, top_p, count)


def generate(model: Any, tokenizer: Any, prompt: str, tokens: int, temperature: float, top_k: int, seed: int) -> str:
    """Continue `prompt` by up to `tokens` tokens, as `continuations` does once."""
    return continuations(model, tokenizer, prompt, tokens, temperature, top_k, seed)[0]


def continuations(
    model: Any,
    tokenizer: Any,
    prompt: str,
    tokens: int,
    temperature: float,
    top_k: int,
    seed: int,
    top_p: float = 1.0,
    count: int = 1,
) -> list[str]:
    """`count` texts that begin with `prompt`, drawn with a key-value cache, within the model's positions.

    A prompt that leaves no room for a token loses its beginning.
    """
    import torch

    positions = model.config.n_positions
    ids = tokenizer.encode(prompt).ids or [model.config.bos_token_id]
    ids = ids[-(positions - 1) :]
    inputs = torch.tensor([ids], device=model.device)
    chosen: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        chosen = {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p}
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
            num_return_sequences=count,
            **chosen,
        )
    model.train(training)
    return [tokenizer.decode(row.tolist()) for row in output]


if __name__ == "__main__":
    sys.exit(main())
