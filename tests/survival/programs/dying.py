"""Deaths of this process within moments of a training."""

import functools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from phalanx.comm.errors import PeerDiedError
from phalanx.gradients.tree_reducer import TreeReducer
from phalanx.parallel import surviving_group
from phalanx.run import program
from phalanx.run.checkpointing import ProgramCheckpoints
from phalanx.run.spares import SparePlaces


class Dying:
    """Kills this process in the moments that were chosen for it.

    "summed" comes after the sum of a step, whose call dies with the process; "missed", too: the
    process lives, and loses the result as if a death had ended the call.
    """

    def __init__(
        self, folder: Path, rank: int, deaths: Sequence[tuple[int, str, int, float]]
    ) -> None:
        """deaths: of ranks, each with its moment, how many such were before, and seconds from its
        beginning."""
        self._note = folder / f"killed-{rank}"
        own = [death[1:] for death in deaths if death[0] == rank and not self._note.exists()]
        self._deaths = {(moment, before): after_s for moment, before, after_s in own}
        self._entered: Counter[str] = Counter()

    def follow(self, optimizer: Optimizer) -> None:
        """Enter the moments of the engine."""
        self._wrap(optimizer, "step", before="optimizer")
        self._wrap(TreeReducer, "_sum", before="sum", after=("summed", "missed"))
        self._wrap(ProgramCheckpoints, "save", before="checkpoint")
        self._wrap(surviving_group, "recover", before="recovery")
        self._wrap(surviving_group, "await_word", before="waiting")
        self._wrap(SparePlaces, "send", before="sending", after=("sent",))
        self._wrap(SparePlaces, "receive", before="receiving", after=("received",))
        self._wrap(program, "certify", before="end")

    def enter(self, moment: str) -> None:
        before = self._entered[moment]
        self._entered[moment] += 1
        after_s = self._deaths.get((moment, before))
        if after_s is None:
            return
        if moment == "missed":
            time.sleep(after_s)
            raise PeerDiedError("the call that another rank's death has ended here")
        if moment == "summed" or not after_s:
            self._die(moment, after_s)
        threading.Thread(target=self._die, args=(moment, after_s), daemon=True).start()

    def _die(self, moment: str, after_s: float) -> None:
        time.sleep(after_s)
        self._note.write_text(moment)
        os.kill(os.getpid(), signal.SIGKILL)

    def _wrap(self, owner: Any, name: str, *, before: str, after: Sequence[str] = ()) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(function)
        def wrapped(*words: Any, **options: Any) -> Any:
            self.enter(before)
            result = function(*words, **options)
            for moment in after:
                self.enter(moment)
            return result

        setattr(owner, name, wrapped)
