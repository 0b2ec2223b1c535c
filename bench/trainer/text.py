"""A dataset for machines that lack what trainer.prepare needs: the sample text, in a vocabulary as large as GPT-2's.

Speed depends on the number of words, not on which ones they are. GPT-2's own tokenizer comes in a package; its place is
taken by one that is learnt from the sample and filled up with words that never occur.
"""

from pathlib import Path

import numpy as np

from trainer.data.batches import INDEX, VERSION
from trainer.files import sha256, write_json

SAMPLE = Path(__file__).parents[2] / "trainer" / "sample" / "opticks.txt"
LEARNT = 8000
"""Words that occur; the text has 600,000 characters."""


def dataset(folder: Path, vocabulary: int = 50257, characters: int = 600_000) -> str:
    """Write it in `folder`, a tenth of it for validation, and return where it is."""
    from tokenizers import Tokenizer
    from tokenizers.implementations.byte_level_bpe import ByteLevelBPETokenizer

    from trainer.data.tokenizer import END_OF_TEXT, FILE, end_of_text

    text = SAMPLE.read_text("utf-8")[:characters]
    learnt = ByteLevelBPETokenizer()
    words = min(LEARNT, vocabulary)
    learnt.train_from_iterator(iter([text]), words, special_tokens=[END_OF_TEXT], show_progress=False)
    tokens = np.array(learnt.encode(text).ids, dtype=np.uint16)
    whole = Tokenizer.from_str(learnt.to_str())
    whole.add_tokens([f"<unused {number}>" for number in range(vocabulary - whole.get_vocab_size())])
    folder.mkdir(parents=True, exist_ok=True)
    whole.save(str(folder / FILE))
    held_out = len(tokens) // 10
    splits = {}
    for name, part in (("validation", tokens[:held_out]), ("train", tokens[held_out:])):
        file = folder / f"{name}.bin"
        part.tofile(file)
        splits[name] = {"shards": [{"file": file.name, "tokens": len(part), "sha256": sha256(file)}]}
    index = {"version": VERSION, "dtype": "uint16", "vocabulary": whole.get_vocab_size()}
    write_json(folder / INDEX, index | {"end_of_text": end_of_text(whole), "splits": splits})
    return str(folder)
