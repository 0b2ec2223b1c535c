"""Weights of the Hugging Face hub into a folder, once: `python -m trainer.fetch --model NAME --output FOLDER`.

The pods that train reach nothing but each other; this runs before them, where the hub is in reach.
"""

import argparse
import sys
from pathlib import Path

from trainer.errors import EXIT_USAGE, UserError
from trainer.files import read_json, write_json
from trainer.metrics import event

COMPLETE = "fetched.json"
"""Written last: a folder without it is incomplete and fetched again."""
WANTED = ("*.json", "*.safetensors", "*.txt", "*.model")
"""Configuration, weights and tokenizer. Pickled weights can run code, so they stay where they are."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.fetch", description="Fetch weights from the hub.")
    parser.add_argument("--model", required=True, help="name on the Hugging Face hub, such as gpt2")
    parser.add_argument("--output", required=True, type=Path, help="folder to fetch it into")
    options = parser.parse_args(arguments)
    try:
        fetch(options.model, options.output)
    except UserError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"--output {options.output}: {error.strerror or error}; give a writable folder", file=sys.stderr)
        return EXIT_USAGE
    return 0


def fetch(model: str, output: Path) -> None:
    """Fetch `model`, or find that it is there already. Raises UserError when the hub does not give it."""
    found = read_json(output / COMPLETE)
    if found is not None and found.get("model") == model:
        event("fetched", state="found", model=model, directory=output, revision=found.get("revision"))
        return
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        # Into a folder of its own, so that what is loaded later needs no cache and no network.
        snapshot_download(model, local_dir=output, allow_patterns=list(WANTED))
    except (HfHubHTTPError, LocalEntryNotFoundError, ValueError) as error:
        cause = " ".join(str(error).split())[:300]
        raise UserError(
            f"--model {model}: cannot be fetched from the hub ({cause}); give a public name, or a token for a gated "
            "model (secrets.huggingFaceToken)"
        ) from None
    if not list(output.glob("*.safetensors")):
        raise UserError(f"--model {model}: has no weights as safetensors; give a model or a revision that has")
    write_json(output / COMPLETE, {"model": model})
    event("fetched", state="written", model=model, directory=output)


if __name__ == "__main__":
    sys.exit(main())
