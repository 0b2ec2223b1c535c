"""The README.md of an exported model: what it is, how it was trained, how good it is, how to use it."""

import math
from pathlib import Path
from typing import Any

import yaml

from trainer.config.schema import stored
from trainer.contract import DONE
from trainer.export import evaluations
from trainer.files import read_json
from trainer.models import adapters
from trainer.models.sources import Source

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
"""The settings that explain a model; folders and ports of the machine it was trained on do not."""


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
    configuration = _configuration(source)
    use = _ADAPTER if net is None else _GENERATE if language else _ANSWER
    if configuration.get("task") == "finetune":
        use = use.replace(_TEXT, _MESSAGE)
    rows = [("adapter of" if net is None else "made of an adapter of", _named(base))] if base else []
    if net is not None:
        parameters = sum(parameter.numel() for parameter in net.parameters())
        rows += [("architecture", type(net).__name__), ("parameters", f"{parameters:,}")]
    rows.append(("weights", dtype))
    rows += _figures(source, configuration, language)
    parts = [
        f"---\n{yaml.safe_dump(header, sort_keys=False)}---",
        f"# {source.run.resolve().name if source.run else Path(source.model).name}",
        "| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in rows),
        f"## Use\n\n```python\n{use}```",
    ]
    settings = [(key, value) for key in SHOWN if (value := configuration.get(key)) not in (None, "")]
    unused = [] if configuration.get("task") == "distillation" else ["distillation."]
    unused += [] if base else ["adapter."]
    settings = [(key, value) for key, value in settings if not key.startswith(tuple(unused))]
    if settings:
        table = "\n".join(f"| `{key}` | {_named(value)} |" for key, value in settings)
        parts.append(f"## Training\n\n| setting | value |\n|---|---|\n{table}")
    judged = evaluations.of_run(source.run, source.step) if source.run and source.step is not None else []
    if judged:
        lines = [evaluations.HEADER, ("---",) * len(evaluations.HEADER), *judged]
        parts.append("## Evaluation\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    written = read_json(source.run / DONE) if source.run else None
    if written and written.get("step") == source.step and written.get("sample"):
        parts.append("## Sample\n\n" + "\n".join(f"> {line}" for line in str(written["sample"]).splitlines()))
    return "\n\n".join(parts) + "\n"


def _figures(source: Source, configuration: dict[str, Any], language: bool) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if source.step is not None:
        rows.append(("step", f"{source.step:,}"))
        per_step = configuration.get("tokens_per_step")
        if language and per_step:
            rows.append(("tokens trained on", f"{source.step * per_step:,}"))
    loss = source.figures.get("validation_loss")
    if loss is not None:
        rows.append(("validation loss (nats)", f"{loss:.4f}"))
        if language:
            rows.append(("validation perplexity", f"{math.exp(loss):.2f}"))
    if (bits := source.figures.get("bits_per_byte")) is not None:
        rows.append(("validation bits per byte", f"{bits:.4f}"))
    for key, name in (("exact_match", "exact match"), ("f1", "F1")):
        if (percent := source.figures.get(key)) is not None:
            rows.append((name, f"{percent:.2f}"))
    return rows


def _configuration(source: Source) -> dict[str, Any]:
    path = source.checkpoint / "config.yaml" if source.checkpoint else None
    return stored(path.read_text("utf-8")) if path and path.exists() else {}


def _named(value: Any) -> Any:
    """A folder of the machine it was trained on by its last part only."""
    return Path(value).name if isinstance(value, str) and value.startswith(("/", "~", ".")) else value


_TEXT = 'inputs = tokenizer("The", return_tensors="pt")'
_MESSAGE = """\
messages = [{"role": "user", "content": "Who are you?"}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")"""

_GENERATE = f"""\
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForCausalLM.from_pretrained("FOLDER")
{_TEXT}
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50, do_sample=True)[0]))
"""

_ADAPTER = _GENERATE.replace(
    "from transformers import AutoModelForCausalLM, ",
    "from peft import AutoPeftModelForCausalLM\nfrom transformers import ",
).replace("= AutoModel", "= AutoPeftModel")

_ANSWER = """\
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForQuestionAnswering.from_pretrained("FOLDER")
inputs = tokenizer("Who wrote Opticks?", "Newton wrote Opticks in 1704.", return_tensors="pt")
scores = model(**inputs)
first, last = scores.start_logits.argmax(), scores.end_logits.argmax()
print(tokenizer.decode(inputs.input_ids[0, first : last + 1]))
"""
