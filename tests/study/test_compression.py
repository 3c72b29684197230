from phalanx.models.build import build_model
from phalanx.models.options import ModelOptions
from phalanx.study.compression import (
    LEAST_STEPS,
    CompressionConfig,
    num_parameters,
    runs_of,
    steps_on,
)


def test_every_compressor_in_every_place() -> None:
    study = CompressionConfig(compressors=("none", "topk"), links=("1Gbit/s,1ms",), seeds=(3, 4))
    runs = runs_of(study)
    assert [run.name for run in runs] == [
        *("memory-none-s3", "memory-topk-s3", "memory-none-s4", "memory-topk-s4"),
        *("1Gbit-s-1ms-none", "1Gbit-s-1ms-topk"),
    ]
    assert {run.options["compress"] for run in runs} == {"none", "topk"}
    assert [run.options["link"] for run in runs] == [None] * 4 + ["1Gbit/s,1ms"] * 2
    assert runs[-1].config.train_samples == steps_on(study, "1Gbit/s,1ms") * study.batch_size
    assert all(run.environment == {"PHALANX_COUNT": "1"} for run in runs)


def test_a_slow_link_is_given_fewer_steps_of_a_known_size() -> None:
    study = CompressionConfig()
    assert steps_on(study, "10Gbit/s") == study.steps
    assert steps_on(study, "10Mbit/s") == LEAST_STEPS
    model = build_model("mlp", seed=0, options=ModelOptions(width=300))
    assert num_parameters(300) == sum(p.numel() for p in model.parameters())
