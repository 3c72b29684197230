"""The program that `phalanx study survival` launches: a rank's training, which knows of no faults.

Run as `-m phalanx.train.disturbed_program OPTIONS`, those of `DisturbedTraining` in JSON.
"""

from __future__ import annotations

import sys

import msgspec
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from phalanx import Checkpoints, start
from phalanx.data.datasets.dataset import load_dataset
from phalanx.models.build import build_model
from phalanx.models.options import ModelOptions
from phalanx.train.survival_options import DisturbedTraining

KEPT_CHECKPOINTS = 3


def train(options: DisturbedTraining) -> None:
    """Train, and record the loss of every step's global batch."""
    data = load_dataset(
        options.dataset,
        options.data_root,
        train_samples=options.train_samples,
        validation_samples=1,
    )
    model = build_model("mlp", seed=options.seed, options=ModelOptions(width=options.width))
    run = start(
        model,
        AdamW(model.parameters(), lr=options.lr),
        (data.train_inputs, data.train_targets),
        batch_size=options.batch_size,
        micro_batches=options.micro_batches,
        steps=options.steps,
        bitwise=True,
        seed=options.seed,
        checkpoint_dir=options.checkpoint_dir,
        checkpoints=Checkpoints(
            every_steps=options.checkpoint_steps,
            keep=None if options.checkpoint_dir is None else KEPT_CHECKPOINTS,
        ),
        resume=options.checkpoint_dir is not None,
        timeout_s=options.timeout_s,
    )
    for batch in run:
        run.backward(cross_entropy(run.model(batch.inputs), batch.targets))
        if batch.ends_step and (loss := run.step_loss) is not None:
            run.log(loss=loss)


if __name__ == "__main__":
    train(DisturbedTraining.from_record(msgspec.json.decode(sys.argv[1])))
