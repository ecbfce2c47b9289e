"""What `DistributedDataParallel` cannot do on tpu, said when the wrapper is made.

To find out which parameters no rank used, PyTorch's reducer copies a map of them through pinned
host memory, for which its C++ asks an allocator that this device, being Python, cannot give.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_tpu_unified.core.errors import NotYetAvailable

MSG_UNUSED = (
    "DistributedDataParallel with {0} is not available for a model on tpu: PyTorch's reducer "
    "needs an allocator of pinned memory, which a device in Python cannot give. Let every rank "
    "use every parameter (loss + 0 * unused.sum()), freeze those that no rank uses, or use "
    "fully_shard."
)


def install(module: Any) -> None:
    """Check the wrappers that `torch.nn.parallel.distributed` makes."""
    wrapper = module.DistributedDataParallel
    theirs = wrapper.__init__

    @functools.wraps(theirs)
    def __init__(self: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        theirs(self, module, *args, **kwargs)
        asked = [n for n in ("find_unused_parameters", "static_graph") if getattr(self, n)]
        on_tpu = any(p.device.type == "tpu" for p in module.parameters())
        if asked and on_tpu:
            raise NotYetAvailable(MSG_UNUSED.format(f"{asked[0]}=True"))

    wrapper.__init__ = __init__
