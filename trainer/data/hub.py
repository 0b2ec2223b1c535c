"""Datasets of the Hugging Face hub: `hf:openwebtext`, `hf:wikitext/wikitext-103-raw-v1`, `hf:NAME/CONFIG:validation`.

Data is streamed from the hub, so only the shards are stored; with HF_HUB_OFFLINE=1 it is read from the cache. A folder
(`hf:./folder`) is opened the way `datasets` opens it.
"""

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from trainer.config.addresses import kind_of
from trainer.config.values import Plain, read_yaml
from trainer.errors import UserError, cause, forbidden, offline
from trainer.files import require_listed, require_regular

PREFIX = "hf:"
CARD = "README.md"
ROWS = 200_000
"""Rows of a cached dataset in one piece of work."""


def identity(spec: str) -> str:
    """The dataset's commit on the hub, which the cache keeps too; of a folder a hash of its files' names and times."""
    return _open(spec)[1]


def parts(spec: str) -> int:
    """The number of parts of the dataset that processes can read independently."""
    data = _open(spec)[0]
    if hasattr(data, "num_rows"):
        return max(1, -(-data.num_rows // ROWS))
    return max(1, data.num_shards)


def rows(spec: str, part: int, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The rows of one part, with only these columns if it has any of them. Raises what the library raises."""
    data = _open(spec)[0]
    if wanted := [name for name in data.column_names or () if name in columns]:
        data = data.select_columns(wanted)
    if hasattr(data, "num_rows"):
        chosen = data.select(range(part * ROWS, min(data.num_rows, (part + 1) * ROWS)))
    else:
        chosen = data.shard(num_shards=data.num_shards, index=part) if data.num_shards > 1 else data
    yield from chosen


def records(spec: str, key: str, split: str) -> Iterator[dict[str, Any]]:
    """Whole rows, for tasks that need more than text. `key`: the setting, for messages; `split`: the default split."""
    try:
        yield from _open(spec if ":" in spec.removeprefix(PREFIX) else f"{spec}:{split}")[0]
    except UserError as error:
        raise UserError(str(error).replace("--input", f"{key}:")) from None
    except Exception as error:
        raise UserError(f"{key}: {spec}: reading failed ({cause(error)})") from None


def _parse(spec: str) -> list[tuple[str, str | None, str]]:
    """The possible meanings of hf:NAME[/CONFIG][:SPLIT] as name, configuration and split, the likelier first.

    A name on the hub is OWNER/NAME, or NAME alone for a few old datasets, so A/B may also mean NAME/CONFIG.
    """
    text = spec.removeprefix(PREFIX)
    name, colon, split = text.rpartition(":") if ":" in text else (text, "", "")
    split = split if colon else "train"
    if not name or not split:
        raise UserError(f"--input {spec}: write hf:NAME, hf:NAME/CONFIG or hf:NAME/CONFIG:SPLIT")
    steps = name.split("/")
    if Path(name).is_dir() or len(steps) == 1:
        return [(name, None, split)]
    folder, _, config = name.rpartition("/")
    if config in configurations(card(_text(Path(folder, CARD)))):
        return [(folder, config, split)]
    if len(steps) == 2:
        return [(name, None, split), (steps[0], steps[1], split)]
    return [("/".join(steps[:2]), "/".join(steps[2:]), split)]


FORMATS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "json"),
    **{suffix: suffix for suffix in (".txt", ".parquet", ".arrow", ".csv", ".tsv", ".xml", ".tar")},
}
"""Suffix -> the format by which `datasets` reads it. Of several in a folder it takes the most frequent."""
_ABOUT = re.compile(r"(licen[cs]e|notice|readme|copying)\b.*|(dataset_infos?|state|config)\.json", re.IGNORECASE)
_CARD = {"configs", "dataset_info", "task_categories", "size_categories", "pretty_name", "license"}
"""Keys of a data set's card, of which one tells it from another README.md with a head."""
_SPLIT = re.compile(
    r"(?:^|[^a-z0-9])(train(?:ing)?|test(?:ing)?|val(?:id(?:ation)?)?|dev|eval(?:uation)?)(?![a-z0-9])", re.IGNORECASE
)
"""As `datasets` finds the split of a file in its path (KEYWORDS_IN_PATH_NAME_BASE_PATTERNS of its data_files.py)."""


def card(text: str) -> dict[str, Any]:
    """What a data set's card (README.md) says in its head; empty for another text."""
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    head = REGEX_YAML_BLOCK.search(text)
    said = _read(head[2]) if head else {}
    return said if _CARD & said.keys() else {}


def configurations(said: dict[str, Any]) -> list[str]:
    """The configurations that a card names: languages, sizes, or other data sets that share a folder."""
    return list(dict.fromkeys(_below(said.get("configs") or said.get("dataset_info"), ("config_name",))))


def splits(said: dict[str, Any], files: list[str]) -> list[str]:
    """The splits of a folder with this card and these files: by the card's configs and the files' names.

    Where the name of a file with data says none, those of which the card's dataset_info counts the rows, too.
    """
    found = [_SPLIT.findall(file) for file in files if not _ABOUT.fullmatch(Path(file).name)]
    counted = [] if all(found) else _below(said.get("dataset_info"), ("splits",))
    named = [*_below(said.get("configs"), ("split",)), *counted]
    return list(dict.fromkeys([*named, *(words[-1].lower() for words in found if words)]))


def _text(path: Path) -> str:
    return path.read_text("utf-8", errors="replace") if path.is_file() else ""


def _read(text: str) -> dict[str, Any]:
    try:
        said = read_yaml(text, Plain)
    except yaml.YAMLError:  # `datasets` says what is wrong
        return {}
    return said if isinstance(said, dict) else {}


def _below(part: Any, keys: tuple[str, ...], below: bool = False) -> Iterator[str]:
    """The texts under any of these keys, however deep. The name of a split names no file."""
    if isinstance(part, str) and below:
        yield part
    for key, each in part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ():
        if key != "split" or key in keys:
            yield from _below(each, keys, below or key in keys)


def _named(spec: str, folder: Path) -> list[str]:
    """What a folder's cards name as its files, by name or pattern.

    Raises UserError for an address, which `datasets` would ask.
    """
    found = []
    for name, read in ((CARD, card), (".huggingface.yaml", _read)):
        for path in _below(read(_text(folder / name)).get("configs"), ("data_files", "data_dir")):
            if "://" in path or "::" in path:
                raise UserError(f"--input {spec}: {name} names {path}, which is not in the folder; name files of it")
            found.append(path)
    return found


def _require_whole(spec: str, folder: Path, data_files: Any, named: list[str]) -> None:
    """Refuse a folder of which `datasets` reads files outside of it, one of two formats, or what it saved for itself.

    data_files: what it reads, by split; named: what a card names, which may be any file.
    """
    require_listed(str(folder))
    taken = {Path(file) for files in data_files.values() for file in files}
    # Beside the shards of save_to_disk lie caches of map and filter, which it would read as rows, too (5.2.0).
    if any((file.parent / "state.json").exists() for file in taken):
        raise UserError(f"--input {spec}: was saved by save_to_disk; save it as Parquet: ds.to_parquet(...)")
    for path in taken:
        require_regular(path, folder)
    if named:
        return
    inside = [path for path in sorted(folder.rglob("*")) if not path.is_dir() and not _ABOUT.fullmatch(path.name)]
    shown = [path for path in inside if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    found = {form: path for path in shown if (form := FORMATS.get(kind_of(path.name)[0]))}
    if len(found) > 1:
        both = ", ".join(str(path.relative_to(folder)) for path in found.values())
        raise UserError(
            f"--input {spec}: the folder holds several formats ({both}), and `datasets` reads one of them; give each "
            "its own folder, or name the files in the card's configs"
        )


@functools.lru_cache(maxsize=4)
def _open(spec: str) -> tuple[Any, str]:
    """The dataset, streamed, or from the cache when offline, and what identifies its content. Raises UserError."""
    import datasets
    from datasets.utils.logging import set_verbosity_error
    from huggingface_hub import HfApi
    from huggingface_hub.utils import logging as hub_logging

    set_verbosity_error()
    hub_logging.set_verbosity_error()  # it logs each of its five tries
    datasets.disable_progress_bars()
    first: Exception | None = None
    for name, config, split in _parse(spec):
        folder = Path(name) if Path(name).is_dir() else None
        try:
            if not offline() and "/" not in name and folder is None:
                name = HfApi().dataset_info(name).id  # huggingface_hub 2.4 reads files of OWNER/NAME only
            named = _named(spec, folder) if folder is not None else []
            builder = datasets.load_dataset_builder(name, config)
            if folder is not None:
                _require_whole(spec, folder, builder.config.data_files or {}, named)
            if folder is not None or not offline():
                return builder.as_streaming_dataset(split=split), str(builder.hash)
            builder.download_and_prepare()
            return builder.as_dataset(split=split), str(builder.hash)
        except UserError:
            raise
        except PermissionError as error:  # prepare would take it for one of --output
            raise forbidden(error) from None
        except Exception as error:  # the library raises two dozen kinds
            first = first or error
            if isinstance(error, ConnectionError) and not offline():  # another meaning of the name would wait as long
                break
    raise UserError(
        f"--input {spec}: no such dataset, split or configuration, or the hub cannot be reached ({cause(first)}); "
        "write hf:NAME/CONFIG:SPLIT, or download it first and set HF_HUB_OFFLINE=1 to use the cache"
    )
