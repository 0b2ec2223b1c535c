"""The task language_model: GPT-2 learns to continue text."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.checkpoint.format import list_checkpoints, load_weights
from trainer.config.schema import Config
from trainer.data.batches import Batches, Dataset, open_dataset
from trainer.data.folder import save_tokenizer
from trainer.evaluate import Validation
from trainer.models import memory
from trainer.models import weights as model
from trainer.models.gpt2 import LanguageModel
from trainer.tasks.work import Weights, Work

if TYPE_CHECKING:
    from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel


def build(config: Config) -> Work:
    """Raises UserError when the data is missing or does not fit the settings."""
    dataset = open_dataset(config.data.directory, config.data.verify)
    tokenizer = dataset.directory / "tokenizer.json"
    net = network(config, dataset, tokenizer)
    language_model = LanguageModel(net)
    known = config.task == "language_model"  # and no teacher beside it
    size = memory.micro_batch(config, net.config if known else None)
    evaluation = config.evaluation

    def save_model(weights: Weights, folder: Path) -> None:
        net.save_pretrained(folder, state_dict=weights)
        save_tokenizer(tokenizer, folder, net.config.n_positions)

    def load_model(folder: Path) -> None:
        load_weights(folder.parent, net)

    def sample() -> str:
        from tokenizers import Tokenizer

        from trainer.sample import generate

        return generate(
            net,
            Tokenizer.from_file(str(tokenizer)),
            evaluation.prompt,
            evaluation.sample_tokens,
            temperature=0.8,
            top_k=50,
            seed=config.run.seed,
        )

    return Work(
        net=net,
        module=language_model,
        batches=Batches(dataset.train, config.sequence_length, size, config.tokens_per_step, config.run.seed),
        validation=Validation(
            dataset.validation, config.sequence_length, size, evaluation.batches, config.micro_batch or memory.UNIT
        ),
        items_per_step=config.tokens_per_step,
        tokens_per_step=config.tokens_per_step,
        samples_per_step=config.tokens_per_step // config.sequence_length,
        flops_per_token=model.flops_per_token(net, config.sequence_length),
        save_model=save_model,
        load_model=load_model,
        expected_loss=None if config.model.weights else math.log(dataset.vocabulary),
        sample=sample if config.evaluation.sample_tokens > 0 else None,
        activations=language_model.attention_statistics if config.metrics.attention_statistics else None,
    )


def network(config: Config, dataset: Dataset, tokenizer: Path) -> "GPT2LMHeadModel":
    """The model to train: fresh, or with the weights that are asked for.

    A run that has a checkpoint reads its weights from there. It takes no more than the shape then, from the checkpoint
    as well: the folder or the hub that it began with may be gone by now.
    """
    settings = config.model
    if not settings.weights:
        return model.build(settings.preset, dataset.vocabulary, dataset.end_of_text, config.run.seed)
    for path in reversed(list_checkpoints(Path(config.run.directory))):
        if (path / "model" / "config.json").is_file():
            return model.shaped_as(path / "model")
    return model.load(settings.weights, settings.preset, dataset.vocabulary, config.sequence_length, tokenizer)
