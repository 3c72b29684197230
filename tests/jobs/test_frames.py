"""Frames: files come out of a stream as they went in, whatever stands around them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.jobs.frames import FRAME_BYTES, MAX_DATA, Decoder, Frame, encode, frames_of

KEY = b"of the job"
CONTENTS = st.binary(max_size=3 * MAX_DATA)
NOISE = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"\x1e", b"\x1ephalanx ", b"\x1eph", b"\x1ephalanx 0" + b" " * FRAME_BYTES]),
).map(lambda text: text + b"\n")


def decoded(stream: bytes, cuts: list[int]) -> list[Frame | bytes]:
    decoder, found, at = Decoder(KEY), [], 0
    for cut in [*sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]:
        found += decoder.feed(stream[at:cut])
        at = cut
    return [*found, decoder.close()]


def ordinary(found: list[Frame | bytes]) -> bytes:
    return b"".join(item for item in found if not isinstance(item, Frame))


@given(st.data(), st.lists(CONTENTS, min_size=1, max_size=3), st.lists(NOISE, max_size=5))
def test_any_interleaving_and_any_cut_gives_the_files_and_the_rest(
    data: st.DataObject, files: list[bytes], noise: list[bytes]
) -> None:
    queues = [list(frames_of(KEY, rank, "a.log", 0, 0, text)) for rank, text in enumerate(files)]
    queues.append(list(noise))
    stream = b""
    while any(queues):
        stream += data.draw(st.sampled_from([queue for queue in queues if queue])).pop(0)
    found = decoded(stream, data.draw(st.lists(st.integers(0, 1 << 20), max_size=20)))
    for rank, text in enumerate(files):
        frames = [item for item in found if isinstance(item, Frame) and item.rank == rank]
        assert b"".join(frame.data for frame in frames) == text
        assert [frame.offset for frame in frames] == [
            sum(len(f.data) for f in frames[:i]) for i in range(len(frames))
        ]
        assert [frame.is_last for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert ordinary(found) == b"".join(noise)


@given(CONTENTS, st.integers(0, FRAME_BYTES - 1), st.integers(1, 255))
def test_a_damaged_frame_is_ordinary_output_and_the_others_stay(
    text: bytes, at: int, change: int
) -> None:
    lines = b"".join(frames_of(KEY, 7, "x", 0, 0, text))
    good = encode(Frame(7, "y", 0, 0, b"good", True), KEY)
    damaged = bytes([*lines[:at], lines[at] ^ change, *lines[at + 1 :]])
    found = decoded(damaged + good, [])
    frames = [item for item in found if isinstance(item, Frame)]
    assert frames[-1].name == "y"
    whole = decoded(lines, [])
    assert all(frame in whole for frame in frames[:-1])


@given(CONTENTS)
def test_lines_are_of_one_size_and_end(text: bytes) -> None:
    for line in frames_of(KEY, 123456, "n" * 96, 10**9, 1 << 50, text):
        assert len(line) == FRAME_BYTES
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1


@pytest.mark.parametrize("name", ["a b", "a" * 97, "ä"])
def test_a_name_that_does_not_fit_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"no frame|ascii"):
        encode(Frame(0, name, 0, 0, b"", True), KEY)
