"""Download weights from the Hugging Face hub, or questions in SQuAD's format, into a folder, once.

    python -m trainer.fetch --model NAME --output FOLDER
    python -m trainer.fetch --questions hf:squad --output FOLDER

Trainers reach no hub (workloads/workspace.py); this runs before them, where it can be reached. Every file is verified
against the hub's checksum, all files are of one revision, and after a kill the same command continues where it stopped.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from trainer.checkpoint.format import INDEX, indexed
from trainer.config.paths import folder, path_or_name
from trainer.contract import FETCHED, MANIFEST
from trainer.errors import UserError, may_pass, one_line, usage
from trainer.files import DESCRIPTION, TEMPLATES, fsync, is_plain_name, read_json, sha256, write_json
from trainer.log import event

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

    from trainer.tasks.squad_data import Question

BEGUN = "fetching.json"
"""Records the revision of the files until all of them are there."""
WEIGHTS = "model.safetensors"
OURS = (FETCHED, BEGUN, MANIFEST)
"""Names of the trainer's own notes, which it believes: never taken from the hub."""
LISTED = 50
"""Files that a log line names."""
AT_ONCE = 4
"""Weight files downloaded in parallel."""


@usage
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.fetch", description="Fetch weights, or questions.")
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--model", help="name on the Hugging Face hub, such as gpt2 or gpt2@REVISION")
    wanted.add_argument(
        "--questions",
        nargs="+",
        type=path_or_name,
        metavar="SOURCE",
        help="hf:NAME, or two SQuAD files: train, validation; one file serves as both",
    )
    parser.add_argument("--output", required=True, type=folder, help="folder to fetch it into")
    options = parser.parse_args(arguments)
    try:
        if options.model:
            fetch(options.model, options.output)
        else:
            fetch_questions(options.questions, options.output)
    except OSError as error:
        raise UserError(
            f"--output {options.output}: {one_line(error.strerror or error)}; give a writable folder"
        ) from None
    return 0


def fetch(model: str, output: Path) -> None:
    """Fetch `model` (NAME, or NAME@REVISION), continue an interrupted fetch, or find the model there.

    Raises UserError when the hub does not serve it or the trainer cannot use it.
    """
    found, begun = (read_json(output / name) or {} for name in (FETCHED, BEGUN))
    if found.get("asked") == model and _all_there(output, found["files"]):
        event("fetched", state="found", model=model, directory=output, revision=found.get("revision"))
        return
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    output.mkdir(parents=True, exist_ok=True)
    name, _, revision = model.partition("@")
    if begun.get("model") == model:
        revision = begun["revision"]  # the hub's newest revision may have changed since
    try:
        info = HfApi().model_info(name, revision=revision or None, files_metadata=True)
        commit = str(info.sha)
        there = {file.rfilename: file for file in info.siblings or ()}
        if "adapter_config.json" in there:
            raise UserError(f"--model {model}: is an adapter, or brings one; give its base model, or a merged model")
        files = {name: file for name, file in there.items() if _is_wanted(name)}
        for former in {*found.get("files", {}), *begun.get("files", {})} - files.keys():
            for path in (output / former, _part(output / former)):  # else transformers reads another model's template
                path.unlink(missing_ok=True)
        ours = sorted(key for key in files if Path(key).suffix in (*DESCRIPTION, ".safetensors"))
        write_json(output / BEGUN, {"model": model, "revision": commit, "files": dict.fromkeys(ours, 0)})
        (output / FETCHED).unlink(missing_ok=True)
        described = [file for key, file in files.items() if Path(key).suffix in DESCRIPTION]
        for file in described:
            _bring(name, commit, file, output)
        weights = [files[key] for key in _weights(model, output, files)]
        _require_space(model, output, weights)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda file: _bring(name, commit, file, output), weights))
    except (HTTPError, OSError, ValueError) as error:
        if isinstance(error, UserError) or (isinstance(error, OSError) and error.errno is not None):
            raise  # an error of the model or of the volume, not of the hub
        raise UserError(_refusal(model, error)) from None
    sizes = {file.rfilename: file.size or 0 for file in (*described, *weights)}
    if left := sorted(there.keys() - sizes.keys()):
        named = one_line(", ".join(left[:LISTED])) + (f" and {len(left) - LISTED} more" if left[LISTED:] else "")
        event("fetched", state="left_out", files=len(left), named=repr(named), reason="'a trainer does not read them'")
    write_json(output / FETCHED, {"asked": model, "model": name, "revision": commit, "files": sizes})
    (output / BEGUN).unlink(missing_ok=True)
    event("fetched", state="written", model=model, directory=output, revision=commit, bytes=sum(sizes.values()))


def _is_wanted(name: str) -> bool:
    """Whether a file of the hub is taken: one of the top folder, or a further chat template."""
    folder, _, last = name.rpartition("/")
    return (
        name not in OURS and is_plain_name(last) and (not folder or (folder == TEMPLATES and last.endswith(".jinja")))
    )


def _all_there(folder: Path, sizes: dict[str, int]) -> bool:
    return all((folder / name).is_file() and (folder / name).stat().st_size == sizes[name] for name in sizes)


def _weights(model: str, output: Path, files: Collection[str]) -> list[str]:
    """The weight files that transformers would read, by the files fetched so far. Raises UserError for none."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = read_json(output / "config.json")
    if config is None:
        raise UserError(f"--model {model}: has no config.json; give a model in the form of transformers")
    kind = config.get("model_type")
    if kind and kind not in CONFIG_MAPPING:
        raise UserError(
            f"--model {model}: transformers does not know its type {kind}, and code that comes with a model is not "
            "run; give a model of a type that it knows"
        )
    index = read_json(output / INDEX) if INDEX in files else None
    found = [WEIGHTS] if WEIGHTS in files or not index else indexed(index, f"--model {model}")
    if not set(found) <= set(files):
        raise UserError(f"--model {model}: has no weights as safetensors; give a model or a revision that has")
    return found


def _require_space(model: str, output: Path, files: list[RepoSibling]) -> None:
    there = [each for file in files for path in [output / file.rfilename] for each in (path, _part(path))]
    missing = sum(file.size or 0 for file in files) - sum(path.stat().st_size for path in there if path.is_file())
    if missing > (free := shutil.disk_usage(output).free):
        raise UserError(
            f"--model {model}: {missing / 1e9:.1f} GB are missing, and the volume has {free / 1e9:.1f} GB free; make "
            "room on it, or a larger one (storage.sizeGib)"
        )


def _part(path: Path) -> Path:
    """Where a file is until it is complete."""
    return path.with_name(f".{path.name}.part")


def _bring(name: str, commit: str, file: RepoSibling, output: Path) -> None:
    """Download a file, unless it is there, and verify its checksum; continue a partial download."""
    # Not hf_hub_download: after a kill it restarts the file and leaves the old part behind (huggingface_hub 2.4).
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    path, size = output / file.rfilename, file.size or 0
    if _is_whole(path, file):
        return
    path.parent.mkdir(exist_ok=True)
    part, url = _part(path), hf_hub_url(name, file.rfilename, revision=commit)
    if part.is_file() and part.stat().st_size > size:  # of another revision
        part.unlink()
    for _ in range(2):
        with open(part, "ab") as opened:
            bounded: Any = _Bounded(opened, size, f"--model {name}: {file.rfilename}")
            http_get(url, bounded, resume_size=opened.tell(), headers=build_hf_headers(), expected_size=size)
        if _is_whole(part, file):
            fsync(part)
            part.replace(path)
            event("fetched", state="file", file=file.rfilename, bytes=size)
            return
        part.unlink()
    raise UserError(f"--model {name}: {file.rfilename} failed its checksum twice; try again later")


class _Bounded:
    """A file that is written up to a size: one that the hub sends without an end would fill the volume."""

    def __init__(self, file: BinaryIO, size: int, name: str) -> None:
        self._file, self._size, self._name = file, size, name

    def write(self, data: bytes) -> int:
        if self._file.tell() + len(data) > self._size:
            self._file.truncate(0)
            raise UserError(
                f"{self._name}: the hub sends more than the {self._size} bytes that it says; try again later"
            )
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _is_whole(path: Path, file: RepoSibling) -> bool:
    """Whether the file has the hub's checksum: SHA-256 for large files, git's blob id for the others."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    if file.lfs is not None:
        return sha256(path) == file.lfs.sha256
    from huggingface_hub.utils.sha import git_hash

    return git_hash(path.read_bytes()) == file.blob_id


def _refusal(model: str, error: Exception) -> str:
    from huggingface_hub import constants, get_token
    from huggingface_hub.errors import GatedRepoError

    page, token = f"{constants.ENDPOINT}/{model.partition('@')[0]}", "secrets.huggingFaceToken"
    if isinstance(error, GatedRepoError):
        why = (
            "the account of this token may not read it"
            if get_token()
            else "only accounts that accepted its licence may read it"
        )
        return (
            f"--model {model}: gated, {why}; accept its licence on its page on the hub ({page}) and set {token} to a "
            "token of the account that did"
        )
    helps = f"see its page ({page}), and check the name; a private one needs {token}"
    helps = "run the same command again: it continues where it stopped" if may_pass(error) else helps
    return f"--model {model}: cannot be fetched from the hub ({one_line(error, 300)}); {helps}"


def fetch_questions(named: list[str], output: Path) -> None:
    """Write train.json and validation.json, or find them there. Raises UserError for data that is not SQuAD's."""
    from trainer.tasks.squad_data import read_questions

    if len(named) > 2:
        raise UserError(f"--questions {' '.join(named)}: {len(named)} sources; give hf:NAME, or train and validation")
    found = read_json(output / FETCHED) or {}
    splits = {"train.json", "validation.json"}
    if found.get("questions") == named and found["files"].keys() == splits and _all_there(output, found["files"]):
        event("fetched", state="found", questions=" ".join(named), directory=output)
        return
    output.mkdir(parents=True, exist_ok=True)
    for split, source in (("train", named[0]), ("validation", named[-1])):
        asked = read_questions(f"question_answering.{split}", source)
        articles = [_article(question) for question in asked]
        write_json(output / f"{split}.json", {"version": "fetched", "data": articles})
        event("fetched", state="written", split=split, questions=len(asked), directory=output)
    sizes = {path.name: path.stat().st_size for path in (output / "train.json", output / "validation.json")}
    write_json(output / FETCHED, {"questions": named, "files": sizes})


def _article(question: Question) -> dict[str, Any]:
    """A question in SQuAD's own form."""
    both = zip(question.answers, question.starts, strict=True)
    answers = [{"text": text, "answer_start": start} for text, start in both]
    asked = {"id": question.id, "question": question.question, "is_impossible": not answers, "answers": answers}
    return {"paragraphs": [{"context": question.context, "qas": [asked]}]}


if __name__ == "__main__":
    sys.exit(main())
