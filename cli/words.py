"""What the trainer logs, in a person's words: `worker 2: a process was lost (SIGKILL) after step 240`."""

from __future__ import annotations

from collections.abc import Mapping

from trainer.contract import EXIT_RESTART, EXIT_TERMINATED
from trainer.plain import counted
from trainer.record import ended, signal_name

#: Event -> its sentence; a field that is missing is left empty. Sources: log.event in trainer/.
SENTENCES = {
    "precision": "computes in {precision} ({reason})",
    "batch": "in a step each process computes {per_step} of size {micro_batch}",
    "compiled": "the model is compiled, in {seconds} s",
    "resume": "resuming from step {step}",
    "config_changed": "{key} is {now} now, and was {before}: {effect}",
    "checkpoint": "checkpoint of step {step} saved",
    "checkpoint_failed": "the checkpoint of step {step} could not be written ({reason}); training goes on",
    "checkpoint_damaged": "a damaged checkpoint is left out: {path} ({reason})",
    "checkpoint_kept": "an old checkpoint could not be deleted: {path} ({reason})",
    "worker_stopped": "{who} stood still for {seconds} s, and is replaced",
    "new_round": "{who}: a new round: {reason}",
    "peers_lost": "{who} has lost the others ({reason})",
    "step_skipped": "step {step} is left out: {reason}",
    "exchange_slow": "the exchange between workers takes {share} of a step: {advice}",
    "first_loss_unexpected": "the first loss is {loss}, not about {expected}: {advice}",
    "end_delayed": "the end is not written yet ({reason}); trying again for {retry_seconds} s",
    "metrics_failed": "{what} is not written ({reason}); training goes on",
    "profile": "profile written to {path}",
    "profile_failed": "the profile could not be written to {path} ({reason}); training goes on",
}


class _Known(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


def sentence(pod: str, fields: Mapping[str, str]) -> str:
    """The sentence for an event of a pod, `pod 2`; empty for one that the record tells, or that says nothing."""
    event, who = fields.get("event", ""), pod.replace("pod ", "worker ")
    told = {key: value.strip("'\"") for key, value in fields.items() if key != "event"}
    if event in ("round", "done") or (event == "new_round" and not told.get("reason")):
        return ""
    if event == "compile":
        verb = "compiles the model" if told.get("compile") == "true" else "does not compile the model"
        return f"{verb} ({told.get('reason', '?')})"
    if event == "workers_ended":
        codes = [int(code) for code in told.get("codes", "").split(",") if code.lstrip("-").isdecimal()]
        step = told.get("step", "")
        after = int(step) if step.isdecimal() and len(step) < 10 else None
        return f"{who}: {ended(codes, told.get('reason') or told.get('codes', ''), after)}"
    if event == "batch" and told.get("per_step", "").isdecimal():
        told["per_step"] = counted(int(told["per_step"]), "micro-batch", "micro-batches")
    if event in SENTENCES:
        return SENTENCES[event].format_map(_Known(told, who=who))
    return f"{event.replace('_', ' ')}: {', '.join(f'{key} {value}' for key, value in told.items())}"


def left(who: str, code: int, reason: str) -> str:
    """Why a pod has ended with a code that is not 0; empty for one that only asks to be started again."""
    if code == EXIT_RESTART:
        return ""
    if code == EXIT_TERMINATED:
        return f"{who} was asked to leave, and has left"
    if code > 128:
        return f"{who} was lost ({reason if reason not in ('', 'Error') else signal_name(code - 128)})"
    return f"{who} has failed: {reason or f'exit code {code}'}"
