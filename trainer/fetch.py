"""What comes from elsewhere into a folder, once: weights of the Hugging Face hub, or questions in SQuAD's format.

    python -m trainer.fetch --model NAME --output FOLDER
    python -m trainer.fetch --questions hf:squad --output FOLDER

The pods that train reach nothing but each other; this runs before them, where the hub is in reach.
"""

import argparse
import sys
from pathlib import Path

from trainer.errors import EXIT_USAGE, UserError
from trainer.files import read_json, write_json
from trainer.log import event

COMPLETE = "fetched.json"
"""Written last: a folder without it is incomplete and fetched again."""
WANTED = ("*.json", "*.safetensors", "*.txt", "*.model")
"""Configuration, weights and tokenizer. Pickled weights can run code, so they stay where they are."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.fetch", description="Fetch weights, or questions.")
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--model", help="name on the Hugging Face hub, such as gpt2")
    wanted.add_argument(
        "--questions", nargs="+", metavar="SOURCE", help="hf:NAME, or two SQuAD files: train, validation"
    )
    parser.add_argument("--output", required=True, type=Path, help="folder to fetch it into")
    options = parser.parse_args(arguments)
    try:
        if options.model:
            fetch(options.model, options.output)
        else:
            fetch_questions(options.questions, options.output)
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


def fetch_questions(named: list[str], output: Path) -> None:
    """Write train.json and validation.json, or find that they are there. Raises UserError for what is no SQuAD."""
    from trainer.tasks.squad_data import read_questions

    found = read_json(output / COMPLETE)
    if found is not None and found.get("questions") == named:
        event("fetched", state="found", questions=" ".join(named), directory=output)
        return
    output.mkdir(parents=True, exist_ok=True)
    for split, source in (("train", named[0]), ("validation", named[-1])):
        asked = read_questions(f"question_answering.{split}", source)
        articles = [
            {
                "paragraphs": [
                    {
                        "context": question.context,
                        "qas": [
                            {
                                "id": question.id,
                                "question": question.question,
                                "is_impossible": not question.answers,
                                "answers": [
                                    {"text": text, "answer_start": start}
                                    for text, start in zip(question.answers, question.starts, strict=True)
                                ],
                            }
                        ],
                    }
                ]
            }
            for question in asked
        ]
        write_json(output / f"{split}.json", {"version": "fetched", "data": articles})
        event("fetched", state="written", split=split, questions=len(asked), directory=output)
    write_json(output / COMPLETE, {"questions": named})


if __name__ == "__main__":
    sys.exit(main())
