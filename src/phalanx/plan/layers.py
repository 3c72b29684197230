"""Parts that the layers of a program have in its passes, by the samples of a micro-batch. Pure."""

from __future__ import annotations

from typing import NamedTuple

from phalanx.plan.profile import Layer, LayerTime, ProgramProfile


class LayerShare(NamedTuple):
    """Parts of a layer: of the forward pass, of the backward pass for both gradients, and of one
    for each by itself."""

    forward: float
    input: float
    weight: float
    input_half: float = 0.0
    weight_half: float = 0.0


def layer_seconds(profile: ProgramProfile, samples: float) -> dict[str, LayerShare]:
    """Return the seconds of all layers on a rank alone, in order; empty: no layers are known."""
    return {layer.name: _time_of(layer, samples) for layer in profile.layers}


def layer_shares(profile: ProgramProfile, samples: float) -> dict[str, LayerShare]:
    """Return the parts of all layers, in order, at so many samples; empty: no layers are known."""
    times = layer_seconds(profile, samples)
    forward_s = sum(time.forward for time in times.values()) or 1.0
    backward_s = sum(time.input + time.weight for time in times.values()) or 1.0
    return {
        name: LayerShare(f / forward_s, *(each / backward_s for each in backward))
        for name, (f, *backward) in times.items()
    }


def _time_of(layer: Layer, samples: float) -> LayerShare:
    """Return the seconds of a layer by a line through the two measured sample numbers beside."""
    below = [time for time in layer.times if time.samples <= samples][-1:]
    above = [time for time in layer.times if time.samples > samples][:1]
    near = [*below, *above]
    low, high = near[0], near[-1]
    if low is high:
        return LayerShare(*(samples / low.samples * each for each in _seconds(low)))
    place = (samples - low.samples) / (high.samples - low.samples)
    pairs = zip(_seconds(low), _seconds(high), strict=True)
    return LayerShare(*((1 - place) * a + place * b for a, b in pairs))


def _seconds(time: LayerTime) -> LayerShare:
    both = time.input_s, time.weight_s
    halves = time.input_half_s, time.weight_half_s
    apart = (b if half is None else half for half, b in zip(halves, both, strict=True))
    return LayerShare(time.forward_s, *both, *apart)
