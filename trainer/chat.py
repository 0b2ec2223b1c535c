"""Answer the messages of a person: `python -m trainer.chat --run DIR`, the pod's side of `trainyard chat`.

Each line of stdin is a JSON list of messages, {"role": "user", "content": "..."}, the last of them to be answered. The
answer comes on stdout as JSON lines: {"text": "..."} for each piece as it is written, then {"end": true}. A first
{"end": true} says that the model is loaded.
"""

import argparse
import json
import sys
from typing import Any

from tokenizers.decoders import DecodeStream

from trainer import log
from trainer.data.tokenizer import load_tokenizer
from trainer.errors import UserError, usage
from trainer.log import say
from trainer.models import loading
from trainer.sample import DRAWN, add_options, check, conversation


@usage
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.chat", description="Answer messages with a trained model.")
    loading.add_options(parser)
    add_options(parser, tokens=400)
    options = parser.parse_args(arguments)
    check(options)
    source = loading.from_options(options)
    chat = conversation(source.model)
    tokenizer = load_tokenizer(source.model)
    net = loading.load_language_model(source)
    drawn = {name: getattr(options, name) for name in DRAWN}
    say(json.dumps({"end": True}))
    for number, line in enumerate(sys.stdin):
        answer(net, tokenizer, chat, _messages(line), options.tokens, drawn | {"seed": options.seed + number})
        say(json.dumps({"end": True}))
    return 0


def _messages(line: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(line)
        if found and all(isinstance(each, dict) and {"role", "content"} <= each.keys() for each in found):
            return found
    except (ValueError, TypeError):
        pass
    raise UserError('stdin: a line is no list of messages; give [{"role": "user", "content": "..."}]')


def answer(net: Any, tokenizer: Any, chat: Any, messages: list[dict[str, Any]], tokens: int, drawn: Any) -> None:
    """Write the answer to the last message, token by token; what is longest ago goes where the positions end."""
    from trainer.models import networks
    from trainer.models.generation import continued

    positions = networks.positions(net.config)
    kept = messages
    asked = chat.asked(kept)
    while positions is not None and len(asked) + tokens > positions and len(kept) > 2:
        begin = int(kept[0]["role"] == "system")
        kept = [*kept[:begin], *kept[begin + 2 :]]  # a question with its answer: templates want them in turn
        asked = chat.asked(kept)
    pieces = DecodeStream(skip_special_tokens=True)

    def told(token: int) -> None:
        if (text := pieces.step(tokenizer, token)) is not None:
            say(json.dumps({"text": text}))

    continued(net, asked, tokens, told=told, **drawn)


if __name__ == "__main__":
    log.leave(main())
