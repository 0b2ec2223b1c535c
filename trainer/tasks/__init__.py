"""The tasks: one module each, whose make_work(config, most) has micro-batches of at most `most` windows."""

import importlib
from types import ModuleType

MODULES = {
    "language_model": "trainer.tasks.pretrain",
    "finetune": "trainer.tasks.finetune",
    "distillation": "trainer.tasks.distill",
    "question_answering": "trainer.tasks.squad",
}


def load(task: str) -> ModuleType:
    """The module of a task; each imports libraries that the others do not need."""
    return importlib.import_module(MODULES[task])
