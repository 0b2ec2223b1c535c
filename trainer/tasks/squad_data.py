"""Questions about texts in SQuAD's format: versions 1.1 and 2, a JSON file at any URL or a dataset of the hub.

Rajpurkar et al. 2016 (arXiv 1606.05250) and 2018 (arXiv 1806.03822): data -> paragraphs -> context and qas -> question,
answers with text and answer_start, and in version 2 is_impossible.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainer import log
from trainer.data import hub, sources
from trainer.data.streams import opened
from trainer.errors import UserError


@dataclass(frozen=True)
class Question:
    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    """Accepted answers; none: the text does not say."""
    starts: tuple[int, ...]
    """Where each begins in the context, in characters."""


def read(key: str, spec: str) -> list[Question]:
    """The questions that `spec` names; `key` is the setting, for messages. Raises UserError."""
    found: list[Question] = []
    misplaced = 0
    for place, record in _records(key, spec):
        try:
            answers = record["answers"]
            texts, starts = tuple(answers["text"]), tuple(int(start) for start in answers["answer_start"])
            question = Question(str(record["id"]), record["question"], record["context"], texts, starts)
            if not isinstance(question.question, str) or not isinstance(question.context, str):
                raise TypeError("question and context must be text")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            cause = f"{type(error).__name__}: {error}"
            raise UserError(f"{key}: {spec}, {place}: not in SQuAD's format ({cause})") from None
        if any(not question.context.startswith(text, start) for text, start in zip(texts, starts, strict=True)):
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
    """Each question in the flat form that the hub has, and its place for messages."""
    if spec.startswith(hub.PREFIX):
        split = "validation" if key.endswith("validation") else "train"
        for number, row in enumerate(hub.records(spec, key, split)):
            yield f"row {number + 1}", row
        return
    try:
        (source,) = sources.find([spec])
        with opened(source) as (file, _):
            content = file.read()
        document = json.loads(content)
    except UserError as error:
        raise UserError(str(error).replace("--input", f"{key}:")) from None
    except ValueError as error:
        raise UserError(f"{key}: {spec}: not a single JSON file ({error}); give one in SQuAD's format") from None
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        raise UserError(f'{key}: {spec}: not in SQuAD\'s format: no list "data" at the top')
    for article, entry in enumerate(document["data"]):
        place = f"article {article + 1}"
        try:
            for paragraph in entry["paragraphs"]:
                for asked in paragraph["qas"]:
                    place = f"article {article + 1}, question {asked.get('id')}"
                    answers = [] if asked.get("is_impossible") else asked["answers"]
                    flat = {
                        "text": [answer["text"] for answer in answers],
                        "answer_start": [answer["answer_start"] for answer in answers],
                    }
                    record = {"id": asked["id"], "question": asked["question"], "context": paragraph["context"]}
                    yield place, {**record, "answers": flat}
        except (KeyError, TypeError, AttributeError) as error:
            cause = f"{type(error).__name__}: {error}"
            raise UserError(f"{key}: {spec}, {place}: not in SQuAD's format ({cause})") from None
