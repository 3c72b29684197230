"""Each rank: train every case, and keep which samples every step was given.

Words: a folder; a JSON object: for each case its name and the options of a training run, in which
{rank} stands for the rank. A case leaves its samples in `<folder>/<name>/seen-<rank>.json`: a list
for each step, in the order of `batch.step`, of those that count; one that is refused leaves the
error in `refused-<rank>` there.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phalanx.errors import UserError
from phalanx.jobs.detect import detect
from phalanx.run.batch import MicroBatch
from phalanx.run.program import ProgramRun
from phalanx.run.program_loss import LossOf
from phalanx.run.start import start
from phalanx.train import session
from phalanx.train.config import TrainConfig
from phalanx.train.run import complete


def watched(run: ProgramRun, seen: dict[int, list[int]]) -> ProgramRun:
    step = run.step

    def stepping(batch: MicroBatch, loss: LossOf, **words: Any) -> Any:
        if run._strategy.counts_samples:
            first = batch.inputs.reshape(len(batch.inputs), -1)[: batch.num_samples, 0]
            seen[batch.step] = np.rint(first.numpy() * 1000).astype(int).tolist()
        return step(batch, loss, **words)

    run.step = stepping  # type: ignore[method-assign]
    return run


def run(folder: Path, options: dict[str, Any]) -> None:
    seen: dict[int, list[int]] = {}
    launched = None if options["strategy"] == "sequential" else detect(os.environ)
    rank = launched.rank if launched else 0
    options = {
        name: value.format(rank=rank) if isinstance(value, str) else value
        for name, value in options.items()
    }
    config = TrainConfig.from_record(
        {"threads": 1, "dtype": "float64", "timeout_s": 60.0, **options}
    )
    config, _ = complete(config, launched)
    session.start = lambda *of, **words: watched(start(*of, **words), seen)
    try:
        session.train(config, launched, folder)
    except UserError as error:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"refused-{rank}").write_text(str(error))
        return
    (folder / f"seen-{rank}.json").write_text(json.dumps(seen))


def main(folder: Path, cases: dict[str, dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    for name, options in cases.items():
        run(folder / name, options)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
