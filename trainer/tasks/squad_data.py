"""Questions about texts: read in SQuAD's format, cut into windows of tokens, kept in the run directory, batched.

The format has versions 1.1 and 2 (Rajpurkar et al., arXiv 1606.05250 and 1806.03822): data -> paragraphs -> context and
qas -> question, answers with text and answer_start, and in version 2 is_impossible. A text that does not fit one window
is cut into several that overlap.

SQuAD takes a processor a minute to tokenise and a second to read back, so the windows are kept in a file, which a
restart reads. Its name is a hash of questions, tokenizer and lengths: a change of one makes a new file. A run does
without it where it is damaged or cannot be written.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trainer import log
from trainer.config.values import shown, unique_keys
from trainer.data import hub, sources
from trainer.errors import UserError, cause, one_line
from trainer.files import replacing

ALIGNMENT = 32
"""Micro-batches are padded to a multiple of this, so that few different lengths occur."""
ENCODED = 256
"""Questions encoded in one call."""
FORMAT = 3
"""Raise it when make_windows() gives other windows for the same questions, or Windows has other fields."""


@dataclass(frozen=True)
class Question:
    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    """Accepted answers; empty if the text holds none."""
    starts: tuple[int, ...]
    """Where each answer begins in the context, in characters."""


def read_questions(key: str, spec: str) -> list[Question]:
    """The questions that `spec` names; `key` is the setting, for messages. Raises UserError."""
    found: list[Question] = []
    misplaced, places = 0, dict[str, str]()
    for place, record in _records(key, spec):
        try:
            answers = record["answers"]
            texts, starts = tuple(answers["text"]), tuple(answers["answer_start"])
            question = Question(str(record["id"]), record["question"], record["context"], texts, starts)
            if not isinstance(question.question, str) or not isinstance(question.context, str):
                raise TypeError("question and context must be text")
            f"{question.question}{question.context}".encode()  # JSON can hold halves of surrogate pairs
            if not isinstance(record["id"], str | int) or isinstance(record["id"], bool):
                raise TypeError("id must be text or a whole number")
            if not question.question.strip():
                raise ValueError("question is empty")
            if any(type(start) is not int for start in starts):  # True is 1, and 0.0 is 0
                raise TypeError("answer_start must be a whole number")
            if len(texts) != len(starts) or not all(isinstance(text, str) for text in texts):
                raise TypeError("each answer needs a text and an answer_start")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{key}: {spec}, {place}: not in SQuAD's format ({cause(error)})") from None
        if question.id in places:
            raise UserError(
                f"{key}: {spec}, {place}: has the id {shown(question.id)} of an earlier question "
                f"({places[question.id]}); predictions are kept by it: give each question an id of its own"
            )
        places[question.id] = place
        if any(
            not text.strip()
            or start < 0
            or not question.context.startswith(text, start)  # Python counts -1 from the end
            for text, start in zip(texts, starts, strict=True)
        ):
            misplaced += 1
            continue
        found.append(question)
    if misplaced:
        log.event("answers_misplaced", source=spec, left_out=misplaced)
    if not found:
        why = f": the answers of all {misplaced} are not where answer_start says" if misplaced else ""
        raise UserError(f"{key}: {spec} holds no usable question{why}")
    return found


def _records(key: str, spec: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each question in the hub's flat form, with its place for messages."""
    if spec.startswith(hub.PREFIX):
        split = "validation" if key.endswith("validation") else "train"
        for number, row in enumerate(hub.records(spec, key, split)):
            yield f"row {number + 1}", row
        return
    try:
        (source,) = sources.find([spec])
        with sources.opened(source) as file:
            content = file.read()
        document = json.loads(content, object_pairs_hook=unique_keys)
    except UserError as error:
        raise UserError(str(error).replace("--input", f"{key}:")) from None
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{key}: {spec}: not a single JSON file ({one_line(error)}); give one in SQuAD's format"
        ) from None
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        raise UserError(f'{key}: {spec}: not in SQuAD\'s format: no list "data" at the top')
    for article, entry in enumerate(document["data"]):
        place = f"article {article + 1}"
        try:
            for paragraph in entry["paragraphs"]:
                for asked in paragraph["qas"]:
                    place = f"article {article + 1}, question {asked.get('id')}"
                    if (impossible := asked.get("is_impossible")) not in (True, False, None):
                        raise TypeError("is_impossible must be true or false")
                    if impossible is not None and impossible == bool(asked.get("answers")):
                        said = "true, and there are answers" if impossible else "false, and there is no answer"
                        raise TypeError(f"is_impossible is {said}")
                    answers = [] if impossible else asked["answers"]
                    flat = {
                        "text": [answer["text"] for answer in answers],
                        "answer_start": [answer["answer_start"] for answer in answers],
                    }
                    record = {"id": asked["id"], "question": asked["question"], "context": paragraph["context"]}
                    yield place, {**record, "answers": flat}
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{key}: {spec}, {place}: not in SQuAD's format ({cause(error)})") from None


@dataclass(frozen=True)
class Windows:
    """The windows of all questions end to end, in arrays that a file keeps as they are."""

    sizes: np.ndarray
    """int32 [windows]: tokens of each, without padding."""
    places: np.ndarray
    """int32 [windows, 3]: the index of its question, and the first and last token of the answer; 0 and 0 (the first
    token of the window) where it is not in the window."""
    ids: np.ndarray
    """int32 [tokens]."""
    spans: np.ndarray
    """int32 [tokens, 2]: first and last character + 1 of each token in the text; (-1, -1) for other tokens."""
    kinds: np.ndarray
    """token_type_ids, uint8 [tokens]; empty for models without them."""

    def __len__(self) -> int:
        return len(self.sizes)

    def tokens(self, window: int) -> slice:
        """The place of a window's tokens in the arrays."""
        return slice(self._ends[window] - self.sizes[window], self._ends[window])

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum(self.sizes, dtype=np.int64)


def make_windows(questions: list[Question], tokenizer: Any, length: int, stride: int, question_tokens: int) -> Windows:
    """The windows of all questions, in order. The answer to learn is the first."""
    made: dict[str, list[Any]] = {field.name: [] for field in dataclasses.fields(Windows)}
    for first in range(0, len(questions), ENCODED):
        batch = questions[first : first + ENCODED]
        asked = [_cut(each.question.strip(), tokenizer, question_tokens) for each in batch]
        encoded = tokenizer(
            asked,
            [each.context for each in batch],
            truncation="only_second",
            max_length=length,
            stride=stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=False,
        )
        for row, owner in enumerate(encoded["overflow_to_sample_mapping"]):
            spans = np.array(encoded["offset_mapping"][row], dtype=np.int32)
            spans[[place != 1 for place in encoded.sequence_ids(row)]] = -1
            made["sizes"].append(len(spans))
            made["places"].append((first + owner, *_answer(batch[owner], spans)))
            made["ids"].append(np.array(encoded["input_ids"][row], np.int32))
            made["spans"].append(spans)
            made["kinds"].append(np.array(encoded.get("token_type_ids", {row: []})[row], np.uint8))
    numbers = {name: np.array(made.pop(name), np.int32) for name in ("sizes", "places")}
    return Windows(**numbers, **{name: np.concatenate(parts) for name, parts in made.items()})


def _cut(question: str, tokenizer: Any, most: int) -> str:
    spans = tokenizer(question, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return question if len(spans) <= most else question[: spans[most - 1][1]]


def _answer(question: Question, spans: np.ndarray) -> tuple[int, int]:
    """First and last token of the first answer, or (0, 0) when the window does not hold all of it."""
    if not question.answers:
        return 0, 0
    answer = question.answers[0]
    begin = question.starts[0] + len(answer) - len(answer.lstrip())  # no token begins or ends with a space
    end = begin + len(answer.strip())
    inside = (spans[:, 0] >= 0) & (spans[:, 1] > begin) & (spans[:, 0] < end)
    tokens = np.flatnonzero(inside)
    if len(tokens) == 0 or spans[tokens[0], 0] > begin or spans[tokens[-1], 1] < end:
        return 0, 0
    return int(tokens[0]), int(tokens[-1])


def kept_windows(questions: list[Question], tokenizer: Any, shape: tuple[int, int, int], folder: Path) -> Windows:
    """make_windows(), read from `folder` if a worker has written them before."""
    path = folder / f"{_digest(questions, tokenizer, shape)}.npz"
    try:
        with np.load(path, allow_pickle=False) as file:
            return Windows(**file)
    except FileNotFoundError:
        pass
    except Exception as error:  # whatever zipfile and numpy make of a damaged file
        log.warn("questions_damaged", file=path, reason=repr(cause(error)), then="'they are tokenised again'")
    made = make_windows(questions, tokenizer, *shape)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            np.savez(file, **{field.name: getattr(made, field.name) for field in dataclasses.fields(made)})
    except OSError as error:
        log.warn("questions_not_kept", file=path, reason=repr(cause(error)), then="'a restart tokenises them again'")
    return made


def digest(sets: list[list[Question]]) -> str:
    """Of all that is learned from and asked, whatever the model."""
    content = [[dataclasses.astuple(each) for each in questions] for questions in sets]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _digest(questions: list[Question], tokenizer: Any, shape: tuple[int, int, int]) -> str:
    asked = [(each.question, each.context, each.answers[:1], each.starts[:1]) for each in questions]
    words = json.loads(tokenizer.backend_tokenizer.to_str())
    del words["truncation"], words["padding"]  # left by the latest call
    names = (tokenizer.model_input_names, tokenizer.padding_side, tokenizer.truncation_side)
    content = json.dumps([FORMAT, shape, names, words, asked])
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def collate(
    made: Windows, chosen: Sequence[int] | np.ndarray, padding: int, length: int | None = None
) -> tuple[np.ndarray, ...]:
    """int64 ids, mask and kinds [windows, length], starts and ends [windows]. length None: the least that fits."""
    width = length or -(-int(made.sizes[chosen].max()) // ALIGNMENT) * ALIGNMENT
    ids = np.full((len(chosen), width), padding, dtype=np.int64)
    mask, kinds = np.zeros_like(ids), np.zeros_like(ids)
    for row, window in enumerate(chosen):
        size, part = made.sizes[window], made.tokens(window)
        ids[row, :size], mask[row, :size] = made.ids[part], 1
        if made.kinds.size:
            kinds[row, :size] = made.kinds[part]
    _, starts, ends = made.places[chosen].astype(np.int64).T
    return ids, mask, kinds, starts, ends
