"""A profile that was never measured: steps of 10 µs a sample, of 2 ranks at once a tenth longer."""

import msgspec

from phalanx.models.splits import SplitMessages, SplitTraffic
from phalanx.parallel.costs import ParameterSpec
from phalanx.plan.machine import Cluster, Network, SumTime
from phalanx.plan.profile import Gradient, Layer, LayerTime, ProgramProfile, StepTimes


def steps(at_once: int, samples: int, *, late: float = 0.0) -> StepTimes:
    """late: by which a tenth of the steps are later, as a share."""
    step_s = (1 + 0.1 * (at_once - 1)) * (1e-3 + samples * 1e-5)
    rank = [step_s] * 90 + [step_s * (1 + late)] * 10
    return StepTimes(
        at_once=at_once,
        samples=samples,
        step_s=[rank] * at_once,
        data_s=0.0,
        forward_s=0.3 * step_s,
        backward_s=0.6 * step_s,
        optimizer_s=0.1 * step_s,
    )


def profile(*, late: float = 0.0, parameters: int = 1_000_000) -> ProgramProfile:
    return ProgramProfile(
        program="mlp on digits, adam",
        model="mlp",
        commit="0123abcd",
        processor="a processor",
        hostname="here",
        cores=2,
        threads=1,
        parameters=parameters,
        itemsize=4,
        state_bytes=16 * parameters,
        peak_memory_bytes=10**9,
        global_batch=1024,
        train_samples=10_240,
        times=[steps(k, n, late=late) for k in (1, 2) for n in (64, 1024)],
        startup_s=3.0,
        gradients=[Gradient(bytes=parameters, ready=share) for share in (0.25, 0.5, 0.75, 1.0)],
        sums=[SumTime(ranks=2, bytes=4 * parameters, seconds=2e-3)],
        message_sums=[SumTime(ranks=2, bytes=4 * parameters, seconds=4e-3)],
        memory_bytes_per_s=1e10,
    )


def layered_profile(layers: int = 8, *, seconds: float = 1e-6, tp: bool = True) -> ProgramProfile:
    """The same with equal layers, whose weights are all that there is to train."""
    whole = profile()
    values = whole.parameters // layers
    names = [f"blocks.{number}" for number in range(layers)]
    times = [
        LayerTime(samples=n, forward_s=n * seconds, input_s=n * seconds, weight_s=n * seconds)
        for n in (16, 64, 1024)
    ]
    return msgspec.structs.replace(
        whole,
        layers=[
            Layer(
                name=name,
                parameter_bytes=4 * values,
                output_bytes=256,
                saved_bytes=1024,
                times=times,
            )
            for name in names
        ],
        units={name: [ParameterSpec(shape=(250, values // 250), split=0)] for name in names},
        split=SplitTraffic(width=64, messages={n: SplitMessages(all_reduces=2) for n in names})
        if tp
        else None,
        no_split=None if tp else "Odd has no plan for tensor parallelism",
    )


def machine(**changes: object) -> Cluster:
    given: dict[str, object] = {
        "name": "hpc",
        "source": "made up",
        "nodes": 64,
        "ranks_per_node": 2,
        "processor": "another processor",
        "network": Network(bandwidth_bytes_per_s=1e9, latency_s=2e-6),
        **changes,
    }
    return Cluster(**given)  # type: ignore[arg-type]
