"""Question answering through the common loop: windows, batches, figures, resume, and the folder that comes out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.trainer.conftest import Workers, losses, metrics
from tests.trainer.toy import apart
from trainer.config import schema as configuration
from trainer.errors import UserError
from trainer.tasks import squad, squad_data
from trainer.tasks.squad import best_span, exact_match, f1, score
from trainer.tasks.squad_data import Question, Windows, collate, make_windows

QUESTIONS = Path(__file__).parent / "squad.json"
KEY = "question_answering.train"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny random BERT and a tokenizer that knows each word of the questions and each character."""
    from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
    from tokenizers.models import WordPiece
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("encoder")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    normal, cut = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    texts = [text for each in squad_data.read_questions(KEY, str(QUESTIONS)) for text in (each.question, each.context)]
    # Not trained: WordPiece's trainer finds another vocabulary each time, which changes the score.
    words = {word for text in texts for word, _ in cut.pre_tokenize_str(normal.normalize_str(text))}
    pieces = words.union(*words, (f"##{letter}" for letter in set().union(*words)))
    known = {piece: number for number, piece in enumerate([*special, *sorted(pieces)])}
    built = Tokenizer(WordPiece(known, unk_token="[UNK]"))
    built.normalizer, built.pre_tokenizer = normal, cut
    built.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    PreTrainedTokenizerFast(tokenizer_object=built, model_input_names=inputs, **names).save_pretrained(folder)
    torch.manual_seed(0)
    size: dict[str, Any] = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    size["intermediate_size"] = 96
    described = BertConfig(vocab_size=built.get_vocab_size(), max_position_embeddings=80, **size)
    BertModel(described).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def words(encoder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(encoder)


@pytest.fixture
def arguments(encoder: Path) -> Callable[..., list[str]]:
    def build(run: Path, **changes: Any) -> list[str]:
        values: dict[str, Any] = {
            "model.name": encoder,
            "question_answering.train": QUESTIONS,
            "question_answering.validation": QUESTIONS,
            "question_answering.document_stride": 8,
            "question_answering.question_tokens": 16,
            "run.directory": run,
            "run.collective_timeout_seconds": 20,
            "steps": 100,
            "sequence_length": 64,
            "micro_batch": 5,
            "tokens_per_step": 64 * 10,
            "precision": "fp32",
            "optimizer.learning_rate": 4e-3,
            "optimizer.warmup_steps": 5,
            "checkpoint.every_steps": 0,
            "metrics.every": 1,
            "metrics.tensorboard": "false",
        }
        values |= {key.replace("__", "."): value for key, value in changes.items()}
        return ["task=question_answering", *(f"{key}={value}" for key, value in values.items())]

    return build


Start = Callable[[int, list[str]], Workers]


def run(start_workers: Start, given: list[str], folder: Path, world: int = 1) -> dict[str, Any]:
    workers = start_workers(world, given)
    assert workers.wait(200) == [0] * world, workers.output
    return json.loads((folder / "DONE").read_text("utf-8"))


def test_it_learns_the_answers_and_where_the_text_has_none(
    start_workers: Start, arguments: Callable[..., list[str]], tmp_path: Path
) -> None:
    """Version 2: a question without an answer beside those of each text."""
    document = json.loads(QUESTIONS.read_text("utf-8"))
    for paragraph in (each for article in document["data"] for each in article["paragraphs"]):
        extra = {"id": f"none-{paragraph['context'][:9]}", "question": "Who painted the moon?", "answers": []}
        paragraph["qas"].append(extra | {"is_impossible": True, "plausible_answers": []})
    path = tmp_path / "version2.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    given = arguments(tmp_path / "run", question_answering__train=path, question_answering__validation=path)
    done = run(start_workers, given, tmp_path / "run")
    assert done["f1"] > 70
    assert done["exact_match"] > 60
    validations = [line for line in metrics(tmp_path / "run") if "validation_loss" in line]
    assert [line["step"] for line in validations] == [0, 100]
    assert validations[0]["f1"] < 50
    assert validations[-1]["f1"] == done["f1"]
    assert validations[-1]["validation_loss"] < 1 < validations[0]["validation_loss"]
    answers = json.loads(Path(done["predictions"]).read_text("utf-8"))
    questions = squad_data.read_questions(KEY, str(path))
    assert score(questions, answers)["f1"] == done["f1"]
    assert answers["q01"] == "Ada Morrow"
    silent = [answers[each.id] == "" for each in questions if not each.answers]
    assert (len(silent), sum(silent) >= 5) == (6, True)

    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    folder = Path(done["checkpoint"]) / "model"
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    net = AutoModelForQuestionAnswering.from_pretrained(folder)
    encoded = tokenizer(questions[0].question, questions[0].context, return_tensors="pt")
    out = net(**encoded)
    span = encoded["input_ids"][0, out.start_logits.argmax() : out.end_logits.argmax() + 1]
    assert tokenizer.decode(span) == "ada morrow"


def test_a_resumed_run_and_two_workers_take_the_same_steps(
    start_workers: Start, arguments: Callable[..., list[str]], tmp_path: Path
) -> None:
    changes = {"optimizer__schedule": "constant", "steps": 8, "checkpoint__every_steps": 4}
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    run(start_workers, arguments(straight, **changes), straight)
    shutil.copytree(straight / "checkpoints" / "step-00000004", resumed / "checkpoints" / "step-00000004")
    run(start_workers, arguments(resumed, **changes), resumed)
    assert losses(resumed) == {step: loss for step, loss in losses(straight).items() if step > 4}  # dropout included
    run(start_workers, arguments(tmp_path / "two", **changes), tmp_path / "two", world=2)
    assert losses(tmp_path / "two") == pytest.approx(losses(straight), rel=1e-4)
    assert len(list((tmp_path / "two" / squad.FEATURES).glob("*.npz"))) == 1  # tokenised once, by either


def answer(made: Windows, window: int, asked: Question) -> str:
    """The answer to learn from a window."""
    _, start, end = made.places[window]
    spans = made.spans[made.tokens(window)]
    return asked.context[spans[start, 0] : spans[end, 1]]


def test_windows_cover_the_text_and_hold_the_answer(words: Any) -> None:
    questions = squad_data.read_questions(KEY, str(QUESTIONS))
    text = " ".join(each.context for each in questions)
    questions.append(Question("long", questions[0].question, text, ("oak",), (text.index("oak"),)))
    made = make_windows(questions, words, length=48, stride=8, question_tokens=12)
    assert set(made.places[:, 0].tolist()) == set(range(len(questions)))
    assert made.sizes.max() <= 48
    covered = set()
    for window, (number, start, _) in enumerate(made.places.tolist()):
        spans = made.spans[made.tokens(window)]
        if number == len(questions) - 1:
            covered |= {place for first, last in spans[spans[:, 0] >= 0].tolist() for place in range(first, last)}
        assert not start or answer(made, window, questions[number]) == questions[number].answers[0]
    assert covered >= {place for place, letter in enumerate(text) if not letter.isspace()}
    assert (made.places[:, 1] > 0).sum() >= len(questions) - 1


def test_a_question_that_is_too_long_is_cut(words: Any) -> None:
    asked = Question("q", "why " * 200, "Because of oak.", ("oak",), (11,))
    made = make_windows([asked], words, length=32, stride=4, question_tokens=10)
    assert len(made) == 1
    assert made.sizes[0] <= 32
    assert made.places[0, 1] > 0


@pytest.mark.parametrize("said", ["  oak", " oak\n"])
def test_space_around_an_answer_is_no_part_of_it(words: Any, said: str) -> None:
    context = f"Its mast was of {said} and its sail of wool."
    asked = Question("q", "Of what was it?", context, (said,), (context.index(said),))
    assert answer(make_windows([asked], words, length=32, stride=4, question_tokens=10), 0, asked) == "oak"


def rows(*sizes: int) -> Windows:
    """Windows of the tokens 1 to each size, with the answer at 1 and 2."""
    ids = np.concatenate([np.arange(1, size + 1, dtype=np.int32) for size in sizes])
    places = np.array([(number, 1, 2) for number in range(len(sizes))], np.int32)
    return Windows(np.array(sizes, np.int32), places, ids, np.zeros((len(ids), 2), np.int32), np.zeros(0, np.uint8))


def test_padding_is_masked_and_as_short_as_the_batch_allows() -> None:
    made = rows(5, 40)
    ids, mask, kinds, starts, ends = collate(made, [0, 1], padding=9)
    assert ids.shape == mask.shape == kinds.shape == (2, 64)
    assert mask.sum(1).tolist() == [5, 40]
    assert set(ids[0, 5:].tolist()) == {9}
    assert (starts.tolist(), ends.tolist()) == ([1, 1], [2, 2])
    assert collate(made, [0, 1], padding=9, length=80)[0].shape == (2, 80)


def test_only_for_a_compiled_graph_are_all_batches_of_one_length(
    arguments: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def widths(**changes: Any) -> set[int]:
        given = arguments(tmp_path, sequence_length=80, tokens_per_step=800, **changes)
        batches = squad.make_work(configuration.load(given)).batches
        return {batches.get(step, 0)[0].shape[1] for step in range(3)}

    assert widths() == {80}  # its windows cannot be rounded up to 96: the encoder has 80 positions
    monkeypatch.setattr(squad_data, "ALIGNMENT", 16)
    assert max(widths()) < 80
    assert widths(compile="false") == widths()
    assert widths(compile="true") == {80}


@settings(max_examples=40)
@given(data=st.data(), size=st.integers(1, 12), longest=st.integers(1, 12))
def test_the_best_span_is_the_best_of_all(data: st.DataObject, size: int, longest: int) -> None:
    numbers = st.lists(st.floats(-5, 5, width=32), min_size=size, max_size=size)
    starts, ends = (np.array(data.draw(numbers), dtype=np.float32) for _ in range(2))
    first = data.draw(st.integers(0, size - 1))
    allowed = np.arange(size) >= first
    value, start, end = best_span(starts, ends, allowed, longest)
    spans = [(i, j) for i in range(first, size) for j in range(i, min(size, i + longest))]
    assert (start, end) in spans
    assert value == max(starts[i] + ends[j] for i, j in spans)


def test_scores_are_the_official_ones() -> None:
    """Worked out by hand from the definitions."""
    assert exact_match("The  Oak!", "oak") == 1
    assert exact_match("an oak tree", "oak") == 0
    assert f1("an oak tree", "the old oak") == pytest.approx(0.5)  # oak tree / old oak
    assert f1("red red leaf", "red leaf") == pytest.approx(0.8)
    assert (f1("", ""), f1("oak", ""), f1("", "oak"), f1("the", "")) == (1, 0, 0, 1)
    two = [Question("a", "", "", ("oak", "an old oak"), (0, 0)), Question("b", "", "", (), ())]
    assert score(two, {"a": "old oak", "b": ""}) == {"exact_match": 100, "f1": 100}
    assert score(two, {"a": "elm", "b": "elm"}) == {"exact_match": 0, "f1": 0}


@pytest.mark.parametrize(("threshold", "said"), [(0.5, ""), (1.5, "oak")])
def test_silence_must_beat_the_best_answer_by_the_threshold(
    arguments: Callable[..., list[str]], tmp_path: Path, threshold: float, said: str
) -> None:
    asked = configuration.load(arguments(tmp_path, question_answering__null_threshold=threshold)).question_answering
    validation = squad.Validation(cast(Any, None), [Question("a", "?", "oak", (), ())], rows(1), asked, 8, 0, None)
    validation._judge([(0, 3.0, 0, 3, 9.0), (0, 1.0, 0, 1, 4.0)])  # the window least sure of silence decides: 4 to 3
    assert validation.answers == {"a": said}


def test_a_hub_dataset_of_the_same_questions_is_the_same(tmp_path: Path) -> None:
    questions = squad_data.read_questions(KEY, str(QUESTIONS))
    folder = tmp_path / "set"
    folder.mkdir()
    rows = [
        {
            "id": each.id,
            "question": each.question,
            "context": each.context,
            "answers": {"text": list(each.answers), "answer_start": list(each.starts)},
        }
        for each in questions
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "train.jsonl").write_text(text, encoding="utf-8")
    assert apart(squad_data.read_questions, KEY, f"hf:{folder}") == questions


def test_misplaced_answers_are_left_out_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(QUESTIONS.read_text("utf-8"))
    document["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = 3
    (tmp_path / "a.json").write_text(json.dumps(document), encoding="utf-8")
    assert len(squad_data.read_questions(KEY, str(tmp_path / "a.json"))) == 19
    assert "event=answers_misplaced" in capsys.readouterr().out


def test_bad_settings_are_told(
    arguments: Callable[..., list[str]], encoder: Path, tmp_path: Path, dataset: Path
) -> None:
    def refusal(**changes: Any) -> str:
        with pytest.raises(UserError) as raised:
            squad.make_work(configuration.load(arguments(tmp_path / "run", **changes)))
        return str(raised.value)

    assert "model.name: missing" in refusal(model__name="")
    assert "question_answering.train: missing" in refusal(question_answering__train="")
    assert "longer than the 80 positions" in refusal(sequence_length=96, tokens_per_step=960)
    assert "holds no config.json" in refusal(model__name=dataset)
    assert "cannot be read as an encoder" in refusal(model__name="nobody/nothing")
    shutil.copytree(encoder, tmp_path / "partial")
    tensors = load_file(encoder / "model.safetensors")
    lacking = next(name for name in tensors if "layer.0" in name)
    del tensors[lacking]
    save_file(tensors, tmp_path / "partial" / "model.safetensors", {"format": "pt"})
    assert f"lacks 1 of the model's tensors, such as bert.{lacking}" in refusal(model__name=tmp_path / "partial")


def test_the_scores_may_have_more_layers_than_one(
    arguments: Callable[..., list[str]], encoder: Path, tmp_path: Path
) -> None:
    from transformers import ModernBertConfig, ModernBertModel

    folder = tmp_path / "modern"
    shutil.copytree(encoder, folder)
    size: dict[str, Any] = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    vocabulary = json.loads((encoder / "config.json").read_text())["vocab_size"]
    made = ModernBertModel(ModernBertConfig(vocab_size=vocabulary, pad_token_id=0, **size))
    made.save_pretrained(folder)
    _, net = squad.network(configuration.load(arguments(tmp_path / "run", model__name=folder)))
    read = dict(net.base_model.named_parameters())
    assert all(torch.equal(read[name], value) for name, value in made.named_parameters())
    tensors = load_file(folder / "model.safetensors")
    del tensors["layers.0.mlp.Wi.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="lacks 1 of the model's tensors, such as model"):
        squad.network(configuration.load(arguments(tmp_path / "run", model__name=folder)))
