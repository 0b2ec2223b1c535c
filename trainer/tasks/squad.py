"""The task question_answering: an encoder learns to find the answer to a question in a text.

Each token gets two scores: to be the answer's first token and its last. The loss of a window is the mean of both cross
entropies, as in BERT (Devlin et al. 2018, arXiv 1810.04805, section 4.2). The loop is that of all tasks.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from trainer import log
from trainer.checkpoint.format import list_checkpoints, load_weights
from trainer.config.schema import Config
from trainer.config.settings import QuestionAnswering
from trainer.data.batches import Batches
from trainer.data.tokenizer import remove_chance
from trainer.errors import UserError
from trainer.files import write_json
from trainer.models import capacity, loading, networks
from trainer.parallel.world import World
from trainer.tasks import squad_data
from trainer.tasks.pretrain import spread
from trainer.tasks.squad_data import Question, Windows, collate, kept_windows, read_questions
from trainer.tasks.work import Weights, Work, shares

if TYPE_CHECKING:
    from transformers.modeling_utils import PreTrainedModel

PREDICTIONS = "predictions.json"
"""In the run directory: the answer given to each question of the validation set, by id."""
FEATURES = "questions"
"""In the run directory: the tokenised questions."""
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def make_work(config: Config, most: int | None = None) -> Work:
    """Raises UserError when the model or the questions are missing or unfit."""
    settings = config.question_answering
    tokenizer, net = network(config)
    learn = read_questions("question_answering.train", settings.train)
    asked = read_questions("question_answering.validation", settings.validation)
    asked = [asked[number] for number in spread(len(asked), settings.validation_examples or len(asked))]
    shape = (config.sequence_length, settings.document_stride, settings.question_tokens)
    folder = Path(config.run.directory) / FEATURES
    made = kept_windows(learn, tokenizer, shape, folder)
    padding = int(tokenizer.pad_token_id or 0)
    # A fixed length needs one compiled graph only, and lengths rounded up could exceed the encoder's positions.
    fixed = config.compile == "true" or config.sequence_length % squad_data.ALIGNMENT != 0
    length = config.sequence_length if fixed else None
    size = capacity.micro_batch(config, most)
    per_step = config.windows_per_step // size
    gather = partial(collate, made, padding=padding, length=length)
    batches = Batches(len(made), gather, size, per_step, config.run.seed)
    windows = per_step * size
    log.event(
        "questions",
        train=len(learn),
        validation=len(asked),
        windows=len(made),
        windows_per_step=windows,
        steps_per_epoch=math.ceil(len(made) / windows),
    )
    module = SpanModel(net, kinds=bool(made.kinds.size))
    held_out = kept_windows(asked, tokenizer, shape, folder)
    validation = Validation(module, asked, held_out, settings, size, padding, length)

    def save_model(weights: Weights, folder: Path) -> None:
        networks.save(net, weights, folder)
        tokenizer.save_pretrained(folder)

    def results() -> dict[str, Any]:
        path = Path(config.run.directory) / PREDICTIONS
        write_json(path, validation.answers)
        return {"predictions": str(path)}

    return Work(
        net=net,
        module=module,
        batches=batches,
        validation=validation,
        items_per_step=windows,
        tokens_per_step=config.tokens_per_step,
        samples_per_step=windows,
        flops_per_token=networks.flops_per_token(net, config.sequence_length),
        save_model=save_model,
        load_model=lambda folder: load_weights(folder.parent, net),
        data=squad_data.digest([learn, asked]),
        results=results,
        validation_figures=lambda: validation.figures,
    )


def network(config: Config) -> tuple[Any, "PreTrainedModel"]:
    """Tokenizer and model of model.name, or of the newest checkpoint, whose weights the resume loads."""
    from transformers.models.auto.modeling_auto import AutoModelForQuestionAnswering
    from transformers.models.auto.tokenization_auto import AutoTokenizer
    from transformers.utils.logging import set_verbosity_error

    set_verbosity_error()  # no warning that the layer for the scores is fresh

    name = config.model.name
    begun = [path / "model" for path in list_checkpoints(Path(config.run.directory))]
    begun = [path for path in begun if (path / "config.json").is_file()]
    source = str(begun[-1]) if begun else loading.from_name(name, "model.name").model
    torch.manual_seed(config.run.seed)  # for the fresh layer of the scores
    with loading.told("model.name", name, source, " as an encoder with a tokenizer"):
        described = loading.read_config(source)  # first: it looks at all files
        tokenizer: Any = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        kind: Any = AutoModelForQuestionAnswering
        if begun:
            net = kind.from_config(described, dtype=torch.float32, trust_remote_code=False)
        else:  # weights of an encoder alone have no layer for the scores
            net = loading.read_weights("model.name", name, source, kind, described, fresh_head=True)
    if not tokenizer.is_fast:
        raise UserError(
            f"model.name: {name} has no tokenizer.json, which token offsets need; name a model that has one"
        )
    remove_chance(tokenizer.backend_tokenizer)
    if len(tokenizer) > described.vocab_size:
        raise UserError(
            f"model.name: {name}: the tokenizer has {len(tokenizer)} tokens, the embedding {described.vocab_size} "
            "rows; name a model whose tokenizer belongs to it"
        )
    # RoBERTa's positions begin behind that of padding, at 2.
    positions = getattr(described, "max_position_embeddings", config.sequence_length)
    positions -= 2 if described.model_type in ("roberta", "xlm-roberta", "camembert") else 0
    if config.sequence_length > positions:
        raise UserError(f"sequence_length: {config.sequence_length} is longer than the {positions} positions of {name}")
    return tokenizer, net


class SpanModel(nn.Module):
    """net: any AutoModelForQuestionAnswering. kinds: whether it takes token_type_ids."""

    def __init__(self, net: Any, kinds: bool) -> None:
        super().__init__()
        self.net, self._kinds = net, kinds

    def scores(self, ids: torch.Tensor, mask: torch.Tensor, kinds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores as start and as end, fp32 [windows, length] each; -inf for padding."""
        extra = {"token_type_ids": kinds} if self._kinds else {}
        out = self.net(input_ids=ids, attention_mask=mask, **extra)
        start, end = (part.float().masked_fill(mask == 0, -torch.inf) for part in (out.start_logits, out.end_logits))
        return start, end

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, kinds: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor
    ) -> torch.Tensor:
        """Summed window losses in nats, fp32. ids, mask, kinds: int64 [windows, length]; starts, ends: [windows]."""
        return span_loss(*self.scores(ids, mask, kinds), starts, ends)


def span_loss(first: torch.Tensor, last: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The sum over the windows of the mean of both cross entropies."""
    return (F.cross_entropy(first, starts, reduction="sum") + F.cross_entropy(last, ends, reduction="sum")) / 2


class Validation:
    """Loss, exact match and F1 on the validation questions."""

    def __init__(
        self,
        module: SpanModel,
        questions: list[Question],
        made: Windows,
        settings: QuestionAnswering,
        micro_batch: int,
        padding: int,
        length: int | None,
    ) -> None:
        self._module, self._questions, self._made = module, questions, made
        self._micro_batch, self._settings = micro_batch, settings
        self._padding, self._length = padding, length
        self._may_be_null = any(not question.answers for question in questions)
        self.answers: dict[str, str] = {}
        """Answers of the latest evaluation by question id."""
        self.figures: dict[str, float] = {}
        """exact_match and f1 of the latest evaluation, in percent."""

    @torch.no_grad()
    def loss(
        self, model: nn.Module, world: World, dtype: torch.dtype, stopping: Callable[[], bool] = lambda: False
    ) -> float:
        """Mean loss of a window; sets `figures` on every worker. Raises Interrupted."""
        total = torch.zeros((), device=world.device, dtype=torch.float64)
        candidates: list[tuple[int, float, int, int, float]] = []
        size = self._micro_batch
        for number in shares(model, math.ceil(len(self._made) / size), world, stopping):
            chosen = range(len(self._made))[number * size :][:size]
            if not chosen:
                continue
            arrays = collate(self._made, chosen, self._padding, self._length)
            ids, mask, kinds, starts, ends = (torch.from_numpy(part).to(world.device) for part in arrays)
            with torch.autocast(world.device.type, dtype, enabled=dtype != torch.float32):
                begin, end = self._module.scores(ids, mask, kinds)
            total += span_loss(begin, end, starts, ends).double()
            pairs = zip(chosen, begin.cpu().numpy(), end.cpu().numpy(), strict=True)
            candidates += [self._candidate(window, *scores) for window, *scores in pairs]
        self._judge([each for part in world.gather(candidates) for each in part])
        return float(world.sum(total)[0]) / len(self._made)

    def _candidate(self, window: int, begin: np.ndarray, end: np.ndarray) -> tuple[int, float, int, int, float]:
        """Question, score and character range of a window's best answer, and the score of no answer."""
        spans = self._made.spans[self._made.tokens(window)]
        best, first, last = best_span(begin, end, spans[:, 0] >= 0, self._settings.answer_tokens)
        start, stop = spans[first, 0], spans[last, 1]  # -1, -1 when the window holds no text
        return int(self._made.places[window, 0]), best, int(start), int(stop), float(begin[0] + end[0])

    def _judge(self, candidates: list[tuple[int, float, int, int, float]]) -> None:
        best: dict[int, tuple[float, int, int]] = {}
        null: dict[int, float] = {}
        for question, value, first, last, nothing in sorted(candidates):  # the same at any number of workers
            best[question] = max(best.get(question, (-math.inf, 0, 0)), (value, first, last))
            # A question has no answer if no window holds one: the window that is least sure of that decides.
            null[question] = min(null.get(question, math.inf), nothing)
        self.answers = {}
        for number, question in enumerate(self._questions):
            value, first, last = best[number]  # -inf from the initial value only for a text without a word
            silent = self._may_be_null and null[number] - value > self._settings.null_threshold
            self.answers[question.id] = "" if silent else question.context[first:last]
        self.figures = score(self._questions, self.answers)


def normalised(text: str) -> str:
    """Lower case, without punctuation, articles and superfluous white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, truth: str) -> float:
    return float(normalised(answer) == normalised(truth))


def f1(answer: str, truth: str) -> float:
    """Harmonic mean of the words' precision and recall; 1 or 0 if either text is empty (version 2)."""
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

    It searches all spans, not only the best twenty starts and ends. Arrays of one window: scores float [length];
    allowed bool [tokens], a run of tokens without a gap; what pads a window is behind them.
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
