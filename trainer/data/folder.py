"""The tokenizer's part of a Hugging Face folder, so that AutoTokenizer.from_pretrained works on it offline."""

import json
import shutil
from pathlib import Path

from tokenizers import Tokenizer

from trainer.data import tokenizer as tokenizers_of_text


def save_tokenizer(file: Path, folder: Path, positions: int) -> None:
    """Copy tokenizer.json `file` into `folder` and describe it. `positions`: the model's greatest length in tokens."""
    shutil.copyfile(file, folder / tokenizers_of_text.FILE)
    built = Tokenizer.from_file(str(file))
    end = built.id_to_token(tokenizers_of_text.end_of_text(built))
    described = {
        # The class that takes tokenizer.json as it is; transformers 4 and 5 both know it by this name.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,  # decode gives the very text back
        "bos_token": end,
        "eos_token": end,
        "unk_token": end,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
