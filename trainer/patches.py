"""What the trainer changes inside other libraries, each with the version at which to look whether it is still needed.

DeepSpeed's insides are in parallel/deepspeed.py, the only module that imports it.
"""

import logging
import sys
from collections.abc import Callable
from datetime import datetime
from types import ModuleType, SimpleNamespace
from typing import Any, cast


class FixedDay(datetime):
    """The date for templates that ask for today's (Llama 3, SmolLM3): otherwise the same conversations would have other
    tokens tomorrow. Llama 3.1's own template falls back to this date."""

    @classmethod
    def now(cls, tz: Any = None) -> "FixedDay":
        return cls(2024, 7, 26)


def fix_the_date_of_templates() -> None:
    """transformers 5.23 gives its templates the clock; look again at 6.0."""
    from transformers.utils import chat_template_utils

    chat_template_utils.datetime = FixedDay


def save_without_deepspeed() -> None:
    """accelerate 1.15 imports DeepSpeed at each save, only to see that the model is none of its engines: 3 s of
    processor time in the middle of training. Look again at 1.16."""
    from accelerate.utils import other

    other.is_deepspeed_available = lambda: "deepspeed" in sys.modules


def harness_without_programs(load: Callable[..., Any]) -> None:
    """Replace what lm-evaluation-harness 0.4.13 fetches or starts; look again at 0.5.

    load: in place of the function of the package `evaluate` that fetches metrics as programs, which takes seconds to
    import.
    """
    sys.modules["evaluate"] = cast("ModuleType", SimpleNamespace(load=load))
    import lm_eval.evaluator

    # Both start programs (pip, git) for information that is not used here.
    lm_eval.evaluator.add_env_info = lambda storage: None
    lm_eval.evaluator.get_git_commit_hash = lambda: None
    logging.getLogger("lm_eval").setLevel(logging.ERROR)


def end_silent_scrapers() -> None:
    """prometheus_client 0.26 keeps a thread for each connection while it is open, as any pod may leave it: end it after
    5 s of silence. Look again at 1.0."""
    from prometheus_client import exposition

    exposition._SilentHandler.timeout = 5.0
