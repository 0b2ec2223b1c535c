"""The README.md of an exported model: what it is, how it was trained, how good it is, how to use it."""

from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment

from trainer.config.schema import stored
from trainer.contract import DONE
from trainer.export import evaluations
from trainer.files import read_record, read_text
from trainer.models import adapters
from trainer.models.loading import Source

TEMPLATE = Path(__file__).with_suffix(".md")
SHOWN = (
    "task",
    "model.name",
    "adapter.kind",
    "adapter.rank",
    "adapter.alpha",
    "adapter.dropout",
    "adapter.targets",
    "distillation.teacher",
    "distillation.temperature",
    "distillation.alpha",
    "tokens_per_step",
    "sequence_length",
    "precision",
    "optimizer.name",
    "optimizer.learning_rate",
    "optimizer.schedule",
    "optimizer.warmup_steps",
    "optimizer.weight_decay",
    "run.seed",
)
"""The settings that explain a model; leaves out folders and ports of the training machine."""


def text(source: Source, net: Any, dtype: str) -> str:
    """Markdown with the YAML header that the Hugging Face hub reads. net: None for an adapter that is not merged."""
    language = net is None or net.can_generate()
    base = adapters.described(Path(source.model)) if adapters.is_folder(source.model) else ""
    header: dict[str, Any] = {
        **({"base_model": base} if base and not base.startswith("/") else {}),
        "library_name": "transformers" if net is not None else "peft",
        "pipeline_tag": "text-generation" if language else "question-answering",
        "tags": [net.config.model_type if net is not None else "lora", "trainyard"],
    }
    settings = source.checkpoint / "config.yaml" if source.checkpoint else None
    configuration = stored(read_text(settings)) if settings and settings.exists() else {}
    rows = [("adapter of" if net is None else "made of an adapter of", _named(base))] if base else []
    if net is not None:
        parameters = sum(parameter.numel() for parameter in net.parameters())
        rows += [("architecture", type(net).__name__), ("parameters", f"{parameters:,}")]
    unused = [] if configuration.get("task") == "distillation" else ["distillation."]
    unused += [] if base else ["adapter."]
    used = [key for key in SHOWN if not key.startswith(tuple(unused))]
    written = read_record(source.run / DONE) if source.run else {}
    template = Environment(trim_blocks=True, keep_trailing_newline=True).from_string(TEMPLATE.read_text("utf-8"))
    return template.render(
        header=yaml.safe_dump(header, sort_keys=False),
        name=source.run.resolve().name if source.run else Path(source.model).name,
        figures=[*rows, ("weights", dtype), *_figures(source, configuration, language)],
        adapter=net is None,
        task="CausalLM" if language else "QuestionAnswering",
        chat=configuration.get("task") == "finetune",
        settings=[(key, _named(value)) for key in used if (value := configuration.get(key)) not in (None, "")],
        columns=evaluations.HEADER,
        judged=evaluations.of_run(source.run, source.step) if source.run and source.step is not None else [],
        sample=str(written.get("sample", "")).splitlines() if written.get("step") == source.step else [],
    )


def _figures(source: Source, configuration: dict[str, Any], language: bool) -> list[tuple[str, str]]:
    step, figures, per_step = source.step, source.figures, configuration.get("tokens_per_step")
    loss = figures.get("validation_loss")
    rows = [
        ("step", step, ","),
        ("tokens trained on", step * per_step if language and per_step and step is not None else None, ","),
        ("validation loss (nats)", loss, ".4f"),
        ("validation perplexity", evaluations.perplexity(loss) if language and loss is not None else None, ".2f"),
        ("validation bits per byte", figures.get("bits_per_byte"), ".4f"),
        ("exact match", figures.get("exact_match"), ".2f"),
        ("F1", figures.get("f1"), ".2f"),
    ]
    return [(name, format(value, form)) for name, value, form in rows if value is not None]


def _named(value: Any) -> Any:
    """Reduce a folder of the training machine to its last part."""
    return Path(value).name if isinstance(value, str) and value.startswith(("/", "~", ".")) else value
