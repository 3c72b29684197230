"""Resources of this process: the time that its cores have worked for it, and its peak memory."""

from __future__ import annotations

import resource
from typing import NamedTuple


class ProcessorTime(NamedTuple):
    """Summed over all threads of the process, so it may exceed the time on the clock."""

    user_s: float
    system_s: float

    @classmethod
    def now(cls) -> ProcessorTime:
        """Return the processor time since the process began. Cost: a microsecond."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return cls(usage.ru_utime, usage.ru_stime)

    def since(self, before: ProcessorTime) -> ProcessorTime:
        """Return the processor time used from `before` until now."""
        return ProcessorTime(self.user_s - before.user_s, self.system_s - before.system_s)


def peak_memory_bytes() -> int:
    """Return the most memory that this process has had at once."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
