"""Benchmarks: the harness's figures are those computed by hand, and reach the report and the model card."""

from __future__ import annotations

import contextlib
import io
import json
import math
import multiprocessing
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import trainer
from tests.ports import free_port
from tests.trainer import toy
from trainer import evaluate, report
from trainer.checkpoint.format import Snapshot, write_checkpoint
from trainer.config.schema import load, resolved
from trainer.export import __main__ as export
from trainer.tasks import pretrain

Said = tuple[int, str, str]
"""Exit code, what a command printed, and what it said beside that."""
QUESTIONS = [
    {"question": "The Rays of Light", "choices": ["differ in Colour", "the the the", "xq"], "answer": 0},
    {"question": "A Prism", "choices": ["of Glass", "zzzz"], "answer": 1},
    {"question": "The Sun", "choices": ["shines upon the Hole", "is"], "answer": 1},
    {"question": "Bodies", "choices": ["reflect", "refract", "inflect Light"], "answer": 0},
]
TEXTS = ["The Rays of Light differ in Colour.", "As the Rays differ, so do the Bodies."]
CHOICE = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: answer
doc_to_choice: "{{{{choices}}}}"
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
metadata: {{version: 2.0}}
"""
ROLLING = """
task: own_texts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: bits_per_byte}}]
metadata: {{version: 1.0}}
"""
END = "<|endoftext|>"
SPECIAL = {END: {"id": END, "ids": [0], "tokens": [END]}}


def template(*parts: str) -> dict[str, Any]:
    """A post-processor that puts tokens around a text, as Llama's, Mistral's and Gemma's tokenizers do."""
    single = [
        {"Sequence": {"id": "A", "type_id": 0}} if part == "text" else {"SpecialToken": {"id": part, "type_id": 0}}
        for part in parts
    ]
    return {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": SPECIAL}


BEGINNINGS = {
    "a begin token": template(END, "text"),
    "an end token": template("text", END),
    "none, but chance": None,
}


class Case:
    """A run with a checkpoint of step 7 and a folder of tasks, and what the command said of them, by its options."""

    def __init__(self, folder: Path, dataset: Path) -> None:
        self.run, self.tasks = folder / "opticks", folder / "tasks"
        small = ["model.preset=tiny", "sequence_length=32", "tokens_per_step=64", "precision=fp32"]
        config = load([f"data.directory={dataset}", f"run.directory={self.run}", *small])
        work = pretrain.make_work(config)
        with torch.no_grad():
            for value in work.net.parameters():
                value.mul_(8)  # opinions that differ
        weights = dict(work.net.state_dict())
        write_checkpoint(self.run, 7, Snapshot(weights, {}), work.save_model, resolved(config))
        (self.run / "metrics.jsonl").write_text('{"step": 7, "validation_loss": 3.5}\n')
        self.tasks.mkdir()
        data = {"own_choice": QUESTIONS, "own_texts": [{"text": text} for text in TEXTS]}
        for name, lines in data.items():
            (self.tasks / f"{name}.json").write_text("\n".join(map(json.dumps, lines)))
            text = (CHOICE if name == "own_choice" else ROLLING).format(name=name, data=self.tasks / f"{name}.json")
            (self.tasks / f"{name}.yaml").write_text(text)
        missing = CHOICE.format(name="own_missing", data=self.tasks / "missing.json")
        (self.tasks / "own_missing.yaml").write_text(missing)
        (self.tasks / "own_unsafe.yaml").write_text(
            missing.replace("own_missing", "own_unsafe") + "unsafe_code: true\n"
        )
        odd = CHOICE.replace("metric_list: [", "metric_list: [{{metric: perplexity}}, {{metric: bits_per_byte}}, ")
        (self.tasks / "own_odd.yaml").write_text(odd.format(name="own_odd", data=self.tasks / "own_choice.json"))
        brier = CHOICE.replace("metric: acc, aggregation: mean", "metric: brier_score")
        (self.tasks / "own_brier.json").write_text("\n".join(map(json.dumps, QUESTIONS[1:3])))
        (self.tasks / "own_brier.yaml").write_text(brier.format(name="own_brier", data=self.tasks / "own_brier.json"))
        metric = CHOICE.format(name="own_metric", data=self.tasks / "own_choice.json")
        (self.tasks / "own_metric.yaml").write_text(metric.replace("metric: acc", "metric: bleurt"))
        with_code = folder / "code"
        with_code.mkdir()
        (with_code / "evil.yaml").write_text(
            CHOICE.format(name="evil", data="x") + "process_docs: !function evil.run\n"
        )
        (with_code / "evil.py").write_text(f"open({str(folder / 'executed')!r}, 'w')\n")
        self.executed, self.model = folder / "executed", self.run / "checkpoints" / "step-00000007" / "model"
        common = ["--run", str(self.run), "--include", str(self.tasks), "--tasks"]
        self.lines = {
            "both": [*common, "own_choice,own_texts"],
            "limited": [*common, "own_choice", "--limit", "2", "--shots", "1", "--json"],
            "folder": ["--model", str(self.model), *common[2:], "own_choice,own_brier", "--json"],
            "odd": ["--model", str(self.model), *common[2:], "own_odd"],
            "unknown": [*common, "own_choise"],
            "missing": [*common, "own_missing"],
            "unsafe": [*common, "own_unsafe"],
            "metric": [*common, "own_metric"],
            "code": [*common[:2], "--include", str(with_code), "--tasks", "evil"],
            "empty": [*common[:2], "--include", str(folder / "nowhere"), "--tasks", "evil"],
        }
        for kind, template in BEGINNINGS.items():
            begun = shutil.copytree(self.model, folder / kind)
            words = json.loads((begun / "tokenizer.json").read_text())
            words["post_processor"] = template
            words["model"]["dropout"] = 0.0 if template else 0.9
            (begun / "tokenizer.json").write_text(json.dumps(words))
            self.lines[kind] = ["--model", str(begun), *common[2:], "own_brier,own_texts", "--json"]
        self.said: dict[str, Said] = toy.apart(ask, self.lines, str(folder))


def ask(lines: dict[str, list[str]], folder: str) -> dict[str, Said]:
    """What the command says of each line, and two workers of the first. One process: the import takes seconds."""
    from lm_eval.tasks import manager

    from trainer import harness  # noqa: F401

    manager.__file__ = f"{folder}/none/manager.py"  # the harness's own 14,000 tasks take half a minute to list
    # A port each time: on that of the former group, a worker could meet the store that rank 0 has not closed yet.
    context, ports = multiprocessing.get_context("fork"), tuple(str(free_port()) for _ in range(3))
    both = [context.Process(target=work, args=(rank, ports, lines["both"], folder)) for rank in (0, 1)]
    for worker in both:
        worker.start()
    for worker in both:
        worker.join(60)
    told = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in (0, 1)]
    found = {f"worker {rank}": tuple(said[0]) for rank, said in enumerate(told)}
    found["worker without an example"] = tuple(told[1][1])
    found |= {f"loss of worker {rank}": tuple(said[2]) for rank, said in enumerate(told)}
    return found | {name: say(line) for name, line in lines.items()}


def work(rank: int, ports: tuple[str, ...], line: list[str], folder: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    said = []
    for port, each in zip(ports, ([*line, "--json"], [*line, "--limit", "1"], [*line[:2], "--json"]), strict=True):
        os.environ["MASTER_PORT"] = port
        said.append(say(each))
    Path(folder, f"{rank}.json").write_text(json.dumps(said))


def say(line: list[str]) -> Said:
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = evaluate.main(line)
    return code, output.getvalue(), errors.getvalue()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Case:
    return Case(tmp_path_factory.mktemp("judged"), dataset)


def by_hand(folder: Path) -> dict[str, Any]:
    """Accuracy, and bits per byte of the texts, from the logits of transformers' model."""
    net: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
    words: Any = AutoTokenizer.from_pretrained(folder)

    def score(context: list[int], continuation: list[int]) -> float:
        ids = torch.tensor([context + continuation])
        with torch.no_grad():
            logs = net(ids).logits[0].log_softmax(-1)
        return sum(float(logs[len(context) - 1 + place, id]) for place, id in enumerate(continuation))

    right = []
    for each in QUESTIONS:
        context = words(each["question"])["input_ids"]
        # pyrefly: ignore[not-iterable]
        scores = [score(context, words(f" {choice}")["input_ids"]) for choice in each["choices"]]
        right.append(scores.index(max(scores)) == each["answer"])
    total = sum(score([words.bos_token_id], words(text)["input_ids"]) for text in TEXTS)
    return {"right": right, "bits": -total / math.log(2) / len("".join(TEXTS))}


def test_the_figures_are_those_of_the_model_by_hand(case: Case) -> None:
    code, output, errors = case.said["both"]
    assert code == 0, errors
    assert "Running loglikelihood requests: 100%" in errors
    assert "\r" not in errors, "whole lines, for a log"
    expected = by_hand(case.model)
    results = json.loads((case.run / "evaluations" / "step-7.json").read_text())
    choice, texts = results["tasks"]["own_choice"], results["tasks"]["own_texts"]
    right = expected["right"]
    mean = sum(right) / len(right)
    assert 0 < mean < 1, "both happen"
    assert texts["metrics"]["bits_per_byte"]["value"] == pytest.approx(expected["bits"], rel=1e-4)
    assert texts["harness"].startswith("lm-eval 0.")
    assert texts["precision"] == "fp32"
    # The newest of the two evaluations of this task: of all four questions, then of two.
    assert (choice["samples"], choice["limit"], choice["shots"], choice["version"]) == (2, 2, 1, 2.0)
    rows = [line.split() for line in output.splitlines()]
    assert rows[0] == ["step", "task", "metric", "value", "±", "shots", "examples", "version"]
    error = math.sqrt(mean * (1 - mean) / (len(right) - 1))
    assert rows[1] == ["7", "own_choice", "acc", f"{mean:.4f}", f"{error:.4f}", "0", "4", "2.0"]
    plain = json.loads(case.said["folder"][1])
    assert plain["tasks"]["own_choice"]["metrics"]["acc"]["value"] == mean


@pytest.mark.parametrize("kind", BEGINNINGS)
def test_a_token_that_the_tokenizer_adds_to_a_text_is_not_scored(case: Case, kind: str) -> None:
    code, output, errors = case.said[kind]
    assert code == 0, errors
    tasks, expected = json.loads(output)["tasks"], by_hand(case.model)
    assert tasks["own_texts"]["metrics"]["bits_per_byte"]["value"] == pytest.approx(expected["bits"], rel=1e-4)
    if "end" in kind:
        plain = json.loads(case.said["folder"][1])["tasks"]
        assert tasks["own_brier"]["metrics"]["brier_score"] == plain["own_brier"]["metrics"]["brier_score"]


def test_a_metric_that_does_not_fit_the_task_is_named(case: Case) -> None:
    code, output, errors = case.said["odd"]
    assert code == 0, errors
    assert [line.split()[1:3] for line in output.splitlines()[1:]] == [
        ["acc", output.splitlines()[1].split()[2]],
        ["perplexity", "missing"],
        ["bits_per_byte", "missing"],
    ]


def test_two_workers_share_the_examples_and_find_the_same(case: Case) -> None:
    code, output, _ = case.said["worker 0"]
    assert code == 0
    assert case.said["worker 1"][:2] == (0, ""), "one of them tells"
    found = json.loads(output)["tasks"]
    expected = by_hand(case.model)
    assert found["own_choice"]["samples"] == len(QUESTIONS)
    assert found["own_choice"]["metrics"]["acc"]["value"] == sum(expected["right"]) / len(QUESTIONS)
    assert found["own_texts"]["metrics"]["bits_per_byte"]["value"] == pytest.approx(expected["bits"], rel=1e-4)


def test_of_two_workers_one_tells_the_loss(case: Case) -> None:
    code, output, errors = case.said["loss of worker 0"]
    assert code == 0, errors
    assert json.loads(output)["loss"] > 0
    assert case.said["loss of worker 1"][:2] == (0, "")


def test_the_report_and_the_model_card_have_the_table(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "vega", str)
    assert report.main([str(case.run), "--output", str(tmp_path / "report")]) == 0
    page = (tmp_path / "report" / "index.html").read_text()
    bits = f"{by_hand(case.model)['bits']:.4f}"
    assert f"<td>own_texts</td><td>bits_per_byte</td><td>{bits}</td>" in page
    assert "<td>first 2</td>" in page
    assert export.main(["--run", str(case.run), "--output", str(tmp_path / "model")]) == 0
    assert f"| 7 | own_texts | bits_per_byte | {bits} |" in (tmp_path / "model" / "README.md").read_text()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("unknown", "--tasks own_choise: no such task; similar ones: own_choice"),
        ("missing", "--tasks own_missing: cannot load its data (json)"),
        ("unsafe", "--tasks own_unsafe: own_unsafe runs programs that the model writes, which is refused"),
        ("metric", "--tasks own_metric: its metric bleurt is a program on the hub; such metrics are refused"),
        ("code", "evil.yaml is no YAML mapping, or uses !function, class or include, which may run Python"),
        ("empty", "holds no task"),
        (
            "worker without an example",
            "--tasks own_choice: has 1 examples for 2 workers; use fewer workers or raise --limit",
        ),
    ],
)
def test_what_cannot_be_judged_is_one_line(case: Case, line: str, said: str) -> None:
    code, output, errors = case.said[line]
    assert (code, output) == (2, "")
    assert said in errors.splitlines()[-1]
    assert "Traceback" not in errors
    assert not case.executed.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tasks", ","], "--tasks: empty"),
        (["--tasks", "hellaswag", "--data", "x"], "benchmarks have data of their own"),
        (["--tasks", "hellaswag", "--limit", "0"], "--limit 0: give a positive number"),
    ],
)
def test_options_are_checked_before_the_harness_is_loaded(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(trainer, "harness", raising=False)
    monkeypatch.setitem(sys.modules, "trainer.harness", None)  # an import fails
    assert evaluate.main(["--run", "/none", *options]) == 2
    assert said in capsys.readouterr().err
