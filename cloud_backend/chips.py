"""Published figures of TPU chips, for estimates.

Sources: Google Cloud's pages "TPU v4", "TPU v5e", "TPU v5p", "TPU v6e" and "TPU7x (Ironwood)",
docs.cloud.google.com/tpu/docs/<name>; peak rates are those of bfloat16 products.
"""

from __future__ import annotations

from typing import NamedTuple

from torch_tpu_unified.core.errors import OptionError

SOURCE = "docs.cloud.google.com/tpu/docs/"
GIB, TERA, GIGA = 1 << 30, 10**12, 10**9


class Chip(NamedTuple):
    """One chip.

    Attributes:
        name: as topologies spell it.
        kind: what jax calls the device.
        flops: a second, bfloat16.
        hbm: bytes of memory.
        bandwidth: bytes a second to that memory.
        links: bytes a second to other chips, both directions together.
        devices: that jax shows of one chip.
        page: the source.
    """

    name: str
    kind: str
    flops: float
    hbm: int
    bandwidth: float
    links: float
    devices: int
    page: str


CHIPS = {
    c.name: c
    for c in (
        Chip("v4", "TPU v4", 275 * TERA, 32 * GIB, 1200 * GIGA, 300 * GIGA, 2, "v4"),
        Chip("v5e", "TPU v5 lite", 197 * TERA, 16 * GIB, 819 * GIGA, 400 * GIGA, 1, "v5e"),
        Chip("v5p", "TPU v5", 459 * TERA, 95 * GIB, 2765 * GIGA, 1200 * GIGA, 1, "v5p"),
        Chip("v6e", "TPU v6 lite", 918 * TERA, 32 * GIB, 1638 * GIGA, 800 * GIGA, 1, "v6e"),
        Chip("tpu7x", "TPU7x", 2307 * TERA, 192 * GIB, 7380 * GIGA, 1200 * GIGA, 2, "tpu7x"),
    )
}


def chip_of(topology: str) -> Chip:
    """The chip of a topology such as `v6e:2x4`.

    Raises:
        OptionError: the name is unknown or has no shape behind a colon.
    """
    name, colon, shape = topology.partition(":")
    if name not in CHIPS or not colon or not shape:
        raise OptionError(
            f"the topology {topology!r} is unknown; give CHIP:SHAPE with a chip of "
            f"{', '.join(CHIPS)}, such as v6e:2x4 or v5p:2x2x1"
        )
    return CHIPS[name]
