"""Decoding of Zarr's chunks that looks at what they unpack to before it unpacks them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zarr.core.codec_pipeline import BatchedCodecPipeline

from phalanx.data.unpacked import check_packed

_SAME_SIZE = frozenset(
    (
        *("bytes", "endian", "transpose", "sharding_indexed", "shuffle", "delta", "bitround"),
        *("fixedscaleoffset", "quantize", "astype", "packbits", "scale_offset", "cast_value"),
        *("crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"),
    )
)
"""Codecs that leave sizes as they are, or multiply them by eight at most."""


class BoundedPipeline(BatchedCodecPipeline):  # type: ignore[misc]
    """Zarr's own pipeline, for whole chunks and those in shards, behind a check of their sizes."""

    async def decode_batch(self, chunk_bytes_and_specs: Iterable[tuple[Any, Any]]) -> Any:
        """Decode chunks. Raises: UserError for one that unpacks to too much."""
        pairs = list(chunk_bytes_and_specs)
        packers = [name for codec in self for name in _names(codec) if name not in _SAME_SIZE]
        for content, spec in pairs:
            if content is not None and packers:
                what = f"a chunk of {spec.shape}"
                # Content that is packed twice is refused: the size of the inner one is not known.
                check_packed(" on ".join(packers), content.as_array_like(), what)
        return await super().decode_batch(pairs)


def _names(codec: Any) -> list[str]:
    """Return the names of a codec, of Zarr 2 those of its filters and its compressor."""
    if type(codec).__name__ == "V2Codec":
        inner = [*(codec.filters or ()), *([codec.compressor] if codec.compressor else ())]
        return [item.codec_id for item in inner]
    return [str(codec.to_dict()["name"]).removeprefix("numcodecs.")]
