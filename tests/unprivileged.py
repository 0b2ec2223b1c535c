"""How tests start a process that file modes hold: tests often run as root, whom none does, and pods do not."""

from __future__ import annotations

import os

UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
