"""Several trainings of one stack: what a stack file may say, and what is refused in which words."""

from __future__ import annotations

from typing import Any

import pytest

from cli.__main__ import main
from infra import trainings
from infra.config import ConfigError, StackConfig
from infra.parse import parse
from infra.stackfiles import stack_file_values
from trainer.config.values import as_typed


def parsed(stack: str = "gcp-c3", **sections: Any) -> StackConfig:
    values = stack_file_values(stack)
    merged = {name: {**values.get(name, {}), **given} for name, given in sections.items() if name in values}
    return parse({**values, **sections, **merged}, stack)


def refused(**sections: Any) -> list[str]:
    with pytest.raises(ConfigError) as error:
        parsed(**sections)
    return [*error.value.lines]


def test_without_them_a_stack_has_one_training() -> None:
    config = parsed()
    assert config.each_training == (config,)
    assert not trainings.plan(config)


def test_each_differs_in_its_keys_alone_whatever_their_spelling() -> None:
    config = parsed(
        training={"optimizer": {"learning_rate": 0.001, "warmupSteps": 7}},
        trainings={
            "same": None,
            "faster": {"optimizer": {"learningRate": 0.003}, "workers": {"count": 1}},
            "finer": {"optimizer": {"learning_rate": 0.0001}, "dataset": {"documents": "lines"}},
        },
    )
    same, faster, finer = config.each_training
    assert [each.training_name for each in config.each_training] == ["same", "faster", "finer"]
    rates = [each.training.optimizer.learning_rate for each in (same, faster, finer)]
    assert rates == [0.001, 0.003, 0.0001]
    assert {each.training.optimizer.warmup_steps for each in (same, faster, finer)} == {7}
    assert (same.workers.count, faster.workers.count) == (parsed().workers.count, 1)
    assert same.dataset.name == faster.dataset.name == parsed().dataset.name != finer.dataset.name
    assert config.workers.count == same.workers.count, "what stands for all, such as the check, has the most workers"


def test_a_sweep_is_the_product_of_its_values_with_names_that_say_them() -> None:
    config = parsed(sweep={"optimizer.learningRate": [0.0003, 0.001], "training.run.seed": [1, 2]})
    made = {
        name: (each.training.optimizer.learning_rate, each.training.run.seed) for name, each in config.trainings.items()
    }
    assert made == {
        "lr-0.0003-seed-1": (0.0003, 1),
        "lr-0.0003-seed-2": (0.0003, 2),
        "lr-0.001-seed-1": (0.001, 1),
        "lr-0.001-seed-2": (0.001, 2),
    }
    assert len({each.training.tokens_per_step for each in config.each_training}) == 1


def test_a_length_in_epochs_takes_the_place_of_one_in_steps() -> None:
    config = parsed(training={"steps": 500}, trainings={"a": {"epochs": 2}, "b": {}})
    assert [(each.training.steps, each.training.epochs) for each in config.each_training] == [(0, 2), (500, 0)]


def test_a_sweep_may_be_over_data_and_workers_and_stand_beside_trainings() -> None:
    config = parsed(trainings={"first": {}}, sweep={"dataset.validationFraction": [0.1, 0.2], "workers.min": [1]})
    assert list(config.trainings) == ["first", "validation-fraction-0.1-min-1", "validation-fraction-0.2-min-1"]
    assert len({each.dataset.name for each in config.each_training}) == 3
    assert any("3 data sets are prepared" in line for line in trainings.plan(config))


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"trainings": {}}, "trainings: is empty; give NAME: {KEY: VALUE}"),
        ({"trainings": ["a"]}, "trainings: [a] is no map of trainings"),
        ({"trainings": {"Big_one": {}}}, "trainings.Big_one: 'Big_one' is not a name; allowed: lower-case letters"),
        ({"trainings": {"a": 5}}, "trainings.a: 5 is not a section"),
        ({"trainings": {"a": {"stepz": 5}}}, "trainings.a.stepz: unknown key; did you mean steps?"),
        ({"trainings": {"a": {"steps": -1}}}, "trainings.a.steps: -1 is not allowed"),
        ({"trainings": {"a": {"training": {"steps": 5}}}}, "trainings.a.training: unknown key"),
        ({"trainings": {"a": {"workers": {"count": 0}}}}, "trainings.a.workers.count: 0 is not allowed"),
        ({"trainings": {"a": {"workers": {"count": 9}}}}, "trainings.a: nodes.max: 3 nodes for workers.count 9"),
        ({"trainings": {"a": {"dataset": 3}}}, "trainings.a.dataset: 3 is not a section"),
        ({"trainings": {"a.b": {}, "a-b": {}}}, "trainings.a-b: a.b and a-b are one name to Kubernetes"),
        ({"trainings": {"a": {}}, "job": {"name": "x"}}, "job.name: x for 1 training; each has its own folder"),
        ({"sweep": {}}, "sweep: is empty; give KEY: [VALUE, ...]"),
        ({"sweep": 5}, "sweep: 5 is no map of keys"),
        ({"sweep": {"lr": [1]}}, "sweep.lr: unknown key; did you mean optimizer.learningRate?"),
        ({"sweep": {"storage.kind": ["nfs"]}}, "sweep.storage.kind: unknown key"),
        ({"sweep": {"steps": 5}}, "sweep.steps: 5 is no list of values"),
        ({"sweep": {"steps": [1, 1]}}, "sweep.steps: a value stands twice"),
        ({"sweep": {"model": [{"preset": "tiny"}]}}, "sweep.model: unknown key"),
        ({"sweep": {"steps": [[1]]}}, "sweep.steps: [1] is no plain value"),
        ({"sweep": {"run.seed": list(range(65))}}, "sweep: 65 trainings; allowed: at most 64"),
        ({"sweep": {"run.seed": list(range(64))}, "trainings": {"a": {}}}, "trainings: 65 with those of sweep"),
        ({"sweep": {"optimizer.learningRate": [-1.0]}}, "training.optimizer.learningRate: -1.0 is not allowed"),
        ({"trainings": {"lr-0.1": {}}, "sweep": {"optimizer.learningRate": [0.1]}}, "both are lr-0.1"),
        (
            {"trainings": {"a": {"dataset": {"name": "x"}}, "b": {"dataset": {"name": "x", "documents": "lines"}}}},
            "dataset.name: x for a and b, whose data differ",
        ),
        (
            {"sweep": {"run.seed": list(range(64))}, "storage": {"sizeGib": 20, "kind": "nfs"}},
            "storage.sizeGib: 20 for the checkpoints of 64 trainings, which take",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_cannot_be_is_refused_in_one_line(sections: dict[str, Any], problem: str) -> None:
    assert any(problem in line for line in refused(**sections))


def test_a_mistake_of_the_stack_is_told_once_and_one_of_a_sweeps_value_too() -> None:
    sweep = {"optimizer.learningRate": [2.0, 0.1], "run.seed": [1, 2, 3]}
    (line,) = refused(training={"steps": -1}, sweep=sweep)
    assert line.startswith("training.steps: -1 is not allowed")
    (line,) = refused(sweep=sweep)
    assert "learningRate: 2 lets any training diverge" in line


def test_what_every_training_mends_is_no_mistake() -> None:
    config = parsed(
        training={"task": "finetune", "model": {"name": "distilgpt2"}},
        trainings={"a": {"dataset": {"input": ["chats.jsonl"]}}, "b": {"dataset": {"input": ["hf:x/y"]}}},
        dataset={"input": ["sample"]},
    )
    assert [each.dataset.input for each in config.each_training] == [("chats.jsonl",), ("hf:x/y",)]


def test_the_plan_says_how_many_run_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    config = parsed(nodes={"max": 4}, workers={"count": 2}, sweep={"run.seed": [1, 2, 3]})
    assert trainings.at_once(config) == 2
    assert any("nodes.max 4 lets 2 run at once" in line for line in trainings.plan(config))
    uneven = parsed(
        nodes={"max": 4}, trainings={"a": {"workers": {"count": 3}}, "b": {}, "c": {"workers": {"count": 1}}}
    )
    assert trainings.at_once(uneven) == 2, "c has room beside a, b has not"


def test_the_plan_says_which_training_would_hold_nodes_and_train_nothing() -> None:
    """Two that need two nodes each, with three: the second gets one and waits for another."""
    both = {"a": {}, "b": {}}
    found = trainings.plan(parsed(nodes={"max": 3}, workers={"count": 2, "min": 2}, trainings=both))
    assert any(
        "b gets the 1 node left, paid while it waits for workers.min 2 and trains nothing" in line for line in found
    )
    for workers, most in (({"count": 2, "min": 1}, 3), ({"count": 2, "min": 2}, 4), ({"count": 2, "min": 2}, 2)):
        fine = trainings.plan(parsed(nodes={"max": most}, workers=workers, trainings=both))
        assert not any("left" in line for line in fine), (workers, most)


def test_the_cost_is_that_of_all_of_them(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    config = parsed(job={"maxHours": 3}, sweep={"run.seed": [1, 2, 3]})
    monkeypatch.setattr("cli.cost.configuration", lambda stack: config)
    assert main(["cost", "--stack", "gcp-c3"]) == 0
    shown = capsys.readouterr().out
    assert "9 hours at full size, the most for all 3 trainings" in shown, "one at a time, three hours each"
    assert "3 trainings: seed-1, seed-2, seed-3" in shown


def test_the_order_is_the_files_though_the_engine_sorts_the_keys() -> None:
    file = {"trainings": {"urgent": {"steps": 5}, "any": None}}
    given = as_typed({"trainings": {"any": None, "more": {}, "urgent": {"steps": 5}}}, file)
    assert list(given["trainings"]) == ["urgent", "any", "more"]
