"""`python -m trainer.finetune_qa [--config FILE.yaml] [section.key=value ...]`: train.py with another task.

The defaults are those of BERT on SQuAD: windows of 384 tokens that overlap by 128, 12 at a time, 48 in a step, AdamW at
3e-5 that falls linearly to 0 (the run_qa.py example of transformers with four workers). Everything can be overridden.
"""

import sys

from trainer.train import __main__ as train

DEFAULTS = (
    "task=question_answering",
    "sequence_length=384",
    "micro_batch=12",
    f"tokens_per_step={48 * 384}",
    "optimizer.learning_rate=3e-5",
    "optimizer.warmup_steps=0",
    "optimizer.schedule=linear",
    "optimizer.final_fraction=0",
    "optimizer.weight_decay=0",
    "optimizer.beta2=0.999",
)


def main(arguments: list[str]) -> int:
    return train.main([*DEFAULTS, *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
