"""How many words a tokenizer has, by the name that a person gives; and a tokenizer to train on the text instead."""

GPT2, LLAMA = 50_257, 32_000
"""Words of GPT-2's tokenizer and of Llama's, the smallest of the common ones."""
TRAIN = "train:"
"""Prefix of a number of words in place of a tokenizer's name: a tokenizer is trained on the text."""
WORDS = range(257, 1 << 20)
"""From the 256 bytes and the end of text to more than any tokenizer in use has."""
TRAINABLE = f"give {TRAIN}WORDS with {WORDS.start} to {WORDS.stop - 1} words, such as {TRAIN}1024"


def words_to_train(tokenizer: str) -> int | None:
    """The number of words in train:1024; 0 if it is not allowed; None if `tokenizer` is a name."""
    if not tokenizer.startswith(TRAIN):
        return None
    words = tokenizer.removeprefix(TRAIN)
    return int(words) if words.isdecimal() and int(words) in WORDS else 0
