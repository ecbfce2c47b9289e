"""Small random configurations of transformers models, by rules that know no model.

Every width is divided by one power of two, so that what depends on it (heads, groups, ranks,
projections) still fits; counts of layers, experts, words and pixels become small numbers.
"""

from __future__ import annotations

import re
from typing import Any

WIDTH = 64
VOCABULARY = 160
_WIDTHS = re.compile(
    r"hidden|intermediate|ffn|embed|d_model|d_ff|d_kv|d_inner|n_embd|n_inner|dim|width|channels|rank|"
    r"head_size|neck|units|filters"
)
_NOT_WIDTHS = re.compile(
    r"num_|n_head|layers|vocab|position|kernel|patch|image|ratio|stride|dilation|depth|groups|"
    r"size_per|input_channels|in_channels|in_chans|out_hw|grid|temporal|window|factor|expan|mult"
)
_LAYERS = re.compile(
    r"^(num|n)_?(hidden_|encoder_|decoder_|text_|vision_|attention_|conv_pos_)?_?layers?$|^depth$|"
    r"^(encoder|decoder|n|num|e|d)_layers?$|num_blocks$|num_hidden_layers|num_\w*encoder_layers|"
    r"num_\w*decoder_layers|nb_layers"
)
_EXPERTS = re.compile(r"(num|n)_(\w*_)?experts$|num_local_experts|n_routed_experts")
_LISTS = re.compile(r"depths|layer_types|num_blocks|mlp_layer_types|layers_block_type|layers_block")
_WINDOWS = {"window_size": 2, "attention_window": 4, "sliding_window": 8}
_PER_LAYER = ("attention_window",)
_ZERO = re.compile(r"drop|mask_(time|feature)_prob|jitter|layerdrop|noise")


def configs(config: Any) -> list[Any]:
    """A configuration and those inside it."""
    found = [config]
    for value in vars(config).values():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            found += configs(value)
    return found


def widths(config: Any) -> int:
    """The power of two by which the widths of a configuration and its parts can be divided."""
    sizes, most = [], 64
    for part in configs(config):
        for name in ("hidden_size", "d_model", "n_embd", "embed_dim", "hidden_dim", "dim"):
            value = vars(part).get(name)
            if isinstance(value, int) and value >= 2:
                sizes.append(value)
                break
        rotated = vars(part).get("qk_rope_head_dim")  # its halves are rotated
        most = min(most, rotated // 4) if isinstance(rotated, int) and rotated >= 4 else most
    if not sizes:
        return 1
    divisor = 1
    while min(sizes) >= 2 * divisor * WIDTH // 2 and all(s % (2 * divisor) == 0 for s in sizes):
        if 2 * divisor > most:
            break
        divisor *= 2
    return divisor


def shrink(config: Any, divisor: int) -> None:
    """Make a configuration and its parts small, in place."""
    for part in configs(config):
        layers = _count_of_layers(part)
        for name, value in list(vars(part).items()):
            if name.startswith("_"):
                continue
            small = _smaller(name, value, divisor, layers)
            if small is not value:
                try:
                    setattr(part, name, small)
                except Exception:  # a configuration that checks itself keeps the value
                    continue


def _count_of_layers(part: Any) -> int:
    """2, or the shortest number that has every kind of layer, where kinds are listed."""
    for name in ("layer_types", "layers_block_type", "mlp_layer_types"):
        kinds = vars(part).get(name)
        if isinstance(kinds, list) and kinds:
            return max(2, *(kinds.index(kind) + 1 for kind in set(kinds)))
    return 2


def _smaller(name: str, value: Any, divisor: int, layers: int) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float):
        return 0.0 if _ZERO.search(name) else value
    if isinstance(value, list):
        return _shorter(name, value, divisor, layers)
    if not isinstance(value, int):
        return value
    if name.endswith(("token_id", "token_index")):
        return value if value < VOCABULARY else 100 + sum(map(ord, name)) % 50
    if "vocab" in name and "size" in name:
        return min(value, VOCABULARY)
    if _LAYERS.search(name):
        return min(value, layers)
    if _EXPERTS.search(name):
        return min(value, 4)
    if name in ("num_experts_per_tok", "top_k", "moe_topk", "moe_top_k"):
        return min(value, 2)
    if name in ("image_size", "img_size", "input_size"):
        return min(value, 64)
    if name in _WINDOWS:
        return min(value, _WINDOWS[name])
    if "max_position" in name or name in ("n_positions", "max_source_positions"):
        return min(value, 256)
    if _WIDTHS.search(name) and not _NOT_WIDTHS.search(name) and value >= 16:
        return value // divisor if value % divisor == 0 else value
    return value


def _shorter(name: str, value: list[Any], divisor: int, layers: int) -> Any:
    if name in ("layer_types", "layers_block_type", "mlp_layer_types"):
        return value[:layers]
    if name in _WINDOWS and all(isinstance(v, int) for v in value):
        return [min(v, _WINDOWS[name]) for v in value][: layers if name in _PER_LAYER else None]
    if name == "depths" or name == "num_blocks":
        return [1 for _ in value]
    if name in ("image_size", "img_size") and all(isinstance(v, int) for v in value):
        return [min(v, 64) for v in value]
    numbers = all(isinstance(v, int) and not isinstance(v, bool) and v >= 16 for v in value)
    divides = numbers and all(v % divisor == 0 and v // divisor >= 4 for v in value)
    if divides and _WIDTHS.search(name) and not _NOT_WIDTHS.search(name):
        return [v // divisor for v in value]
    return value
