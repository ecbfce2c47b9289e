"""One PyTorch model definition, two targets: the `tpu` device and LiteRT files.

The public face. Importing it loads neither half and not torch either: names are looked up when they
are first used, and the device is registered as soon as torch is there (at once, if it is already).
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_tpu_unified.comparison import compare as compare
    from torch_tpu_unified.comparison import verify as verify
    from torch_tpu_unified.conversion import Converted as Converted
    from torch_tpu_unified.conversion import convert as convert
    from torch_tpu_unified.device_functions import Mesh as Mesh
    from torch_tpu_unified.device_functions import jax_op as jax_op
    from torch_tpu_unified.device_functions import load_executable as load_executable
    from torch_tpu_unified.device_functions import scan_layers as scan_layers
    from torch_tpu_unified.device_functions import shard as shard
    from torch_tpu_unified.edgetpu import precheck as precheck
    from torch_tpu_unified.filediff import diff as diff
    from torch_tpu_unified.inspection import inspect as inspect
    from torch_tpu_unified.inspection import profile as profile
    from torch_tpu_unified.parity_table import parity as parity
    from torch_tpu_unified.planning import plan as plan
    from torch_tpu_unified.programs import load_program as load_program
    from torch_tpu_unified.runtime import load as load

__version__ = "0.1.0"

# public name -> the module that holds it
_HOMES = {
    "Converted": "conversion",
    "Mesh": "device_functions",
    "compare": "comparison",
    "convert": "conversion",
    "diff": "filediff",
    "inspect": "inspection",
    "jax_op": "device_functions",
    "load": "runtime",
    "load_executable": "device_functions",
    "load_program": "programs",
    "parity": "parity_table",
    "plan": "planning",
    "precheck": "edgetpu",
    "profile": "inspection",
    "scan_layers": "device_functions",
    "shard": "device_functions",
    "verify": "comparison",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def _register_device() -> None:
    """Register `tpu` now if torch is loaded, else right after it is.

    An installed package is also found by PyTorch's autoload; this serves a checkout on the path and
    TORCH_DEVICE_BACKEND_AUTOLOAD=0. While torch is still loading, its autoload is what runs this.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        from torch_tpu_unified import autoload

        autoload.after_torch()
    elif not getattr(torch.__spec__, "_initializing", False):
        from cloud_backend import device

        device.register()


_register_device()
