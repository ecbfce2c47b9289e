"""Quantisation of an exported graph: integers in place of float32, after LiteRT's specification.

    config     what is asked for: the mode, the observer, number types of inputs and outputs
    prepare    rewrites what has no integer kernel into what has one
    calibrate  runs the float graph on samples and keeps the range of every value
    scales     gives every value its scale; values that must share one form groups
    static     writes the integer graph: int8, or int16 activations with int8 weights
    weights    the modes that need no samples: only the weights change their type

`traits.py` says for each LiteRT operator what its kernel demands.
"""

from litert_export.quantize.config import QuantConfig as QuantConfig
