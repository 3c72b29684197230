"""Processor time of this process: what its cores have done for it, beside what the clock says."""

from __future__ import annotations

import resource
from typing import NamedTuple


class ProcessorTime(NamedTuple):
    """Summed over all threads of the process, so it may exceed the time on the clock."""

    user_s: float
    system_s: float

    @classmethod
    def now(cls) -> ProcessorTime:
        """Since the process began. Costs a microsecond."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return cls(usage.ru_utime, usage.ru_stime)

    def since(self, before: ProcessorTime) -> ProcessorTime:
        """Return the processor time used from `before` until now."""
        return ProcessorTime(self.user_s - before.user_s, self.system_s - before.system_s)
