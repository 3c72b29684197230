"""A profile that was never measured: steps of 10 µs a sample, of 2 ranks at once a tenth longer."""

from phalanx.plan.machine import Cluster, Network, SumTime
from phalanx.plan.profile import Gradient, ProgramProfile, StepTimes


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
