"""Threads that read ahead are rows of a trace."""

import itertools
from pathlib import Path

import pytest
import torch

from phalanx.data.reading.pack_reader import Preparation
from phalanx.data.reading.prefetch import lane_of
from phalanx.data.sources.pack_source import PackSource
from phalanx.data.sources.packed import Packed, describe
from phalanx.records.spans import SpanRecorder
from tests.data.packs import make_pack


@pytest.mark.parametrize(
    ("readers", "lanes"), [(2, {"reader 0", "reader 1"}), (1, {"reader 0"}), (0, {"reader"})]
)
def test_every_batch_is_a_span_of_who_read_it(
    tmp_path: Path, readers: int, lanes: set[str]
) -> None:
    described, spans = describe(make_pack(tmp_path / "pack", samples=400)), SpanRecorder()
    preparation = Preparation(
        shape=described.shape.inputs,
        dtype="float64",
        means=None,
        deviations=None,
        packed_dims=len(described.shape.inputs),
        num_classes=described.shape.num_classes,
        augment_seed=None,
    )
    packed = Packed(described.folder, readers=readers)
    source = PackSource(packed, described, preparation, spans=spans)
    indices = list(torch.arange(400).split(4))
    num_batches = len(list(source.read("train", indices, 0)))
    source.close()
    made = spans.take()
    assert len(made) == num_batches == 100
    assert {span.name for span in made} == {"read"}
    assert {span.lane for span in made} <= lanes
    for lane in lanes:
        own = sorted((span.began_ns, span.ended_ns) for span in made if span.lane == lane)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(own))


def test_the_lane_of_a_thread() -> None:
    assert lane_of("reader_11") == "reader 11"
    assert lane_of("MainThread") == "reader"
    assert lane_of("ThreadPoolExecutor-0_0") == "reader"
