"""Export a trained model and upload it to the Hugging Face hub: `python -m trainer.push --run DIR`.

The token is HF_TOKEN's, with the right to write. A new repository is private unless --public is given; in one that has
files nothing is replaced without --replace, and the hub keeps the former commit.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from trainer.errors import UserError, one_line, usage
from trainer.export.__main__ import TYPES, export
from trainer.models import loading

OWN = {".gitattributes"}
"""What the hub itself puts into an empty repository."""
KEY = "the Hugging Face token"


@usage
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.push", description="Upload a model to the hub.")
    loading.add_options(parser)
    parser.add_argument("--repository", default="", metavar="OWNER/NAME", help="default: the run's name, of your own")
    parser.add_argument("--dtype", choices=TYPES, default="fp32", help="type of the weights")
    parser.add_argument("--merge", action="store_true", help="an adapter: add it to its model, and upload that")
    parser.add_argument("--public", action="store_true", help="a new repository is for everybody, not private")
    parser.add_argument("--replace", action="store_true", help="replace the files of a repository that has some")
    options = parser.parse_args(arguments)
    print(push(loading.from_options(options), options))
    return 0


def push(source: loading.Source, options: argparse.Namespace) -> str:
    """The address of the model. Raises UserError before anything is made where the hub would refuse it."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HTTPError
    from huggingface_hub.utils import HFValidationError, disable_progress_bars

    if not os.environ.get("HF_TOKEN"):
        raise UserError(f"{KEY} is missing; give one that may write in HF_TOKEN")
    disable_progress_bars()
    api = HfApi()
    try:
        name = _repository(api, source, options)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch, "model")
            export(source, folder, options.dtype, merge=options.merge)
            api.create_repo(name, private=not options.public, exist_ok=True)
            done = api.upload_folder(
                repo_id=name,
                folder_path=folder,
                commit_message="A trained model" + (f", step {source.step}" if source.step is not None else ""),
                delete_patterns="*" if options.replace else None,
            )
    except HFValidationError as error:
        raise UserError(f"--repository {options.repository}: {one_line(error)}") from None
    except HfHubHTTPError as error:
        raise UserError(f"the hub refuses it: {one_line(error.server_message or error)}") from None
    except HTTPError as error:
        raise UserError(f"the hub cannot be reached ({one_line(error)}); try again") from None
    return f"{done.repo_url} at {done.oid[:12]}"


def _repository(api: Any, source: loading.Source, options: argparse.Namespace) -> str:
    """OWNER/NAME of the repository. Raises UserError for a token that only reads, and for one that has files."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        who = api.whoami()
    except HfHubHTTPError as error:
        raise UserError(f"{KEY} is refused by the hub ({one_line(error)}); make another") from None
    role = who.get("auth", {}).get("accessToken", {}).get("role")
    if role == "read":
        raise UserError(f"{KEY} of {who['name']} may only read; make one with the role write")
    run = source.run.resolve().name if source.run else Path(source.model).name
    name = options.repository or run
    name = name if "/" in name else f"{who['name']}/{name}"
    if api.repo_exists(name):
        there = sorted(set(api.list_repo_files(name)) - OWN)
        if there and not options.replace:
            raise UserError(
                f"--repository {name}: has files already, such as {there[0]}; give another name, or --replace (the hub "
                "keeps the former commit)"
            )
    return name


if __name__ == "__main__":
    sys.exit(main())
