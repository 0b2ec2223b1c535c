"""Sample text from a trained model: `python -m trainer.sample --run DIR --prompt TEXT`; with --chat, its answer."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from trainer import log
from trainer.data.tokenizer import find_folder, load_tokenizer
from trainer.errors import UserError, usage
from trainer.models import loading
from trainer.plain import plain

if TYPE_CHECKING:
    from trainer.data.conversations import Chat

DRAWN = ("temperature", "top_k", "top_p", "seed")
"""Options by which a token is drawn."""


@usage
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.sample", description="Continue a text with a trained model."
    )
    loading.add_options(parser)
    parser.add_argument("--prompt", default="The", help="how the text begins; - reads it from stdin")
    parser.add_argument("--chat", action="store_true", help="the prompt is a user's message; print the answer alone")
    parser.add_argument("--count", type=int, default=1, help="texts to draw")
    add_options(parser)
    options = parser.parse_args(arguments)
    check(options)
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    drawn = {name: getattr(options, name) for name in ("chat", "count", *DRAWN)}
    # Any byte can be a token, and this text ends in somebody's terminal.
    print(plain("\n---\n".join(sample(loading.from_options(options), prompt, options.tokens, **drawn))))
    return 0


def add_options(parser: argparse.ArgumentParser, tokens: int = 120) -> None:
    """How a text is drawn."""
    parser.add_argument("--tokens", type=int, default=tokens, help="most tokens to add")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest token each time")
    parser.add_argument("--top-k", type=int, default=50, help="draw from the k likeliest tokens; 0: from all")
    parser.add_argument(
        "--top-p", type=float, default=1.0, help="draw from the likeliest that make up this probability"
    )
    parser.add_argument("--seed", type=int, default=0, help="same seed, same text")


def check(options: argparse.Namespace) -> None:
    """Raise UserError for a number out of its range."""
    for name in ("tokens", "count"):
        if getattr(options, name, 1) < 1:
            raise UserError(f"--{name} {getattr(options, name)}: give a positive number")
    for name in ("temperature", "top_k"):
        if getattr(options, name) < 0:
            raise UserError(f"--{name.replace('_', '-')} {getattr(options, name)}: give 0 or more")
    if not 0 < options.top_p <= 1:
        raise UserError(f"--top-p {options.top_p}: give a probability above 0, up to 1")
    if getattr(options, "count", 1) > 1 and options.temperature == 0:
        raise UserError("--count: with --temperature 0 every text is the same; raise the temperature")


def sample(source: loading.Source, prompt: str, tokens: int, *, chat: bool = False, **drawn: Any) -> list[str]:
    """Texts that begin with the prompt or, with `chat`, answers to it. `drawn`: as for `continuations`.

    Raises UserError when the model, its tokenizer or its chat template is missing.
    """
    from trainer.models import networks
    from trainer.models.generation import continuations, continued

    asked = conversation(source.model).asked([{"role": "user", "content": prompt}]) if chat else []
    net = loading.load_language_model(source)
    tokenizer = load_tokenizer(source.model)
    length, positions = len(asked or tokenizer.encode(prompt).ids), networks.positions(net.config)
    if positions is not None and length + tokens > positions:
        print(f"note: {length} + {tokens} tokens exceed the model's {positions} positions; shortened", file=sys.stderr)
    if not chat:
        return continuations(net, tokenizer, prompt, tokens, **drawn)
    kept = min(length, positions - 1) if positions is not None else length
    return [tokenizer.decode(row[kept:]).strip() for row in continued(net, asked, tokens, **drawn)]


def conversation(model: str) -> "Chat":
    """The chat template of a model's folder, as in training. Raises UserError where it has none."""
    from trainer.data.conversations import Chat

    folder = find_folder(model)
    chat = Chat(folder, load_tokenizer(model)) if folder is not None else None
    if chat is None or not chat.has_template:
        raise UserError(f"{model} has no chat template, which fine-tuning on conversations gives; sample it as a text")
    return chat


if __name__ == "__main__":
    log.leave(main())
