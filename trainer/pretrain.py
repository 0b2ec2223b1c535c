"""The task language_model: GPT-2 learns to continue text."""

import math
from pathlib import Path

from trainer import checkpoint, model
from trainer.config import Config
from trainer.data import Batches, open_dataset
from trainer.evaluate import Validation
from trainer.folder import save_tokenizer
from trainer.language_model import LanguageModel
from trainer.work import Weights, Work


def build(config: Config) -> Work:
    """Raises UserError when the data is missing or does not fit the settings."""
    settings = config.train
    dataset = open_dataset(config.data.directory)
    tokenizer = dataset.directory / "tokenizer.json"
    net = model.build(config.model.preset, dataset.vocabulary, dataset.end_of_text, config.run.seed)

    def save_model(weights: Weights, folder: Path) -> None:
        net.save_pretrained(folder, state_dict=weights)
        save_tokenizer(tokenizer, folder, net.config.n_positions)

    def load_model(folder: Path) -> None:
        checkpoint.load_weights(folder.parent, net)

    def sample() -> str:
        from tokenizers import Tokenizer

        from trainer.sample import generate

        evaluation = config.evaluation
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
        module=LanguageModel(net),
        batches=Batches(
            dataset.train, settings.sequence_length, settings.micro_batch, settings.tokens_per_step, config.run.seed
        ),
        validation=Validation(
            dataset.validation, settings.sequence_length, settings.micro_batch, config.evaluation.batches
        ),
        items_per_step=settings.tokens_per_step,
        tokens_per_step=settings.tokens_per_step,
        samples_per_step=settings.tokens_per_step // settings.sequence_length,
        flops_per_token=0.0,
        save_model=save_model,
        load_model=load_model,
        expected_loss=math.log(dataset.vocabulary),
        sample=sample if config.evaluation.sample_tokens > 0 else None,
    )
