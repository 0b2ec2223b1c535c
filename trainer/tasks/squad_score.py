"""Exact match and F1 as SQuAD's official evaluation defines them, and the best answer in a text by its scores."""

import re
import string
from collections import Counter
from collections.abc import Mapping

import numpy as np

from trainer.tasks.squad_data import Question

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Lower case, without punctuation, articles and superfluous white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, truth: str) -> float:
    return float(normalised(answer) == normalised(truth))


def f1(answer: str, truth: str) -> float:
    """Harmonic mean of precision and recall of the words; 1 or 0 where one of both is empty (version 2)."""
    ours, theirs = normalised(answer).split(), normalised(truth).split()
    if not ours or not theirs:
        return float(ours == theirs)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


def score(questions: list[Question], answers: Mapping[str, str]) -> dict[str, float]:
    """Percentages over all questions, each judged by the accepted answer that fits best."""
    matches = [max(exact_match(answers[each.id], truth) for truth in each.answers or ("",)) for each in questions]
    overlaps = [max(f1(answers[each.id], truth) for truth in each.answers or ("",)) for each in questions]
    return {"exact_match": 100 * sum(matches) / len(matches), "f1": 100 * sum(overlaps) / len(overlaps)}


def best_span(starts: np.ndarray, ends: np.ndarray, allowed: np.ndarray, longest: int) -> tuple[float, int, int]:
    """The best start + end score and its first and last token, over spans of at most `longest` allowed tokens.

    All of them, not the best twenty of each. Arrays of one window: scores float [length], allowed bool [length], a run
    of tokens without a gap.
    """
    places = np.flatnonzero(allowed)
    if len(places) == 0:
        return -np.inf, 0, 0
    first, last = starts[places], ends[places]
    sums = first[:, None] + last[None, :]
    distance = np.arange(len(places))[None, :] - np.arange(len(places))[:, None]
    sums[(distance < 0) | (distance >= longest)] = -np.inf
    start, end = divmod(int(sums.argmax()), len(places))
    return float(sums[start, end]), int(places[start]), int(places[end])
