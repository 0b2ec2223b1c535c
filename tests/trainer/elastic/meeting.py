"""Members of a rendezvous that join a round at once."""

from __future__ import annotations

import threading

from torch.distributed.elastic.rendezvous.api import RendezvousInfo

from trainer.elastic.rendezvous import Handler


def meet(*handlers: Handler, seconds: float = 60) -> list[RendezvousInfo]:
    """Let the handlers join a round at once; return what each is told, in their order."""
    found: dict[int, RendezvousInfo] = {}

    def join(at: int, member: Handler) -> None:
        found[at] = member.next_rendezvous()

    threads = [threading.Thread(target=join, args=pair, daemon=True) for pair in enumerate(handlers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    assert len(found) == len(handlers), f"only {sorted(found)} met"
    return [found[at] for at in sorted(found)]
