"""transformers' architectures by modality, from its own tables of models for tasks.

Inputs come from the signature of `forward` and the configuration. A sequence for a model of images
and text holds as many image tokens as the model makes features of the image.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import nn

from benchmarks.model_families.judge import NotJudged, Sample
from benchmarks.model_families.shrink import VOCABULARY, configs, shrink, widths

TABLES = {
    "text": ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SEQUENCE_CLASSIFICATION"),
    "vision": (
        "IMAGE_CLASSIFICATION",
        "SEMANTIC_SEGMENTATION",
        "DEPTH_ESTIMATION",
        "UNIVERSAL_SEGMENTATION",
        "MASKED_IMAGE_MODELING",
        "OBJECT_DETECTION",
        "VIDEO_CLASSIFICATION",
        "BACKBONE",
    ),
    "audio": (
        "AUDIO_CLASSIFICATION",
        "CTC",
        "SPEECH_SEQ_2_SEQ",
        "AUDIO_FRAME_CLASSIFICATION",
        "AUDIO_XVECTOR",
        "TEXT_TO_SPECTROGRAM",
    ),
    "multimodal": (
        "ZERO_SHOT_IMAGE_CLASSIFICATION",
        "IMAGE_TEXT_TO_TEXT",
        "VISUAL_QUESTION_ANSWERING",
        "DOCUMENT_QUESTION_ANSWERING",
        "MULTIMODAL_LM",
    ),
}
GROUPS = tuple(TABLES)
BATCH, LENGTH = 2, 12


def _table(group: str) -> dict[str, str]:
    """Model type to the name of its class, for a modality; the first table that has it decides."""
    from transformers.models.auto import modeling_auto

    found: dict[str, str] = {}
    for task in TABLES[group]:
        for kind, names in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").items():
            found.setdefault(kind, names if isinstance(names, str) else names[0])
    return found


def architectures(group: str) -> list[str]:
    """Model types of a modality. Those that another modality has before are left out."""
    before: set[str] = set()
    for other in GROUPS[: GROUPS.index(group)]:
        before |= set(_table(other))
    classes: set[str] = set()
    found = []
    for kind, name in sorted(_table(group).items()):
        if kind not in before and name not in classes:  # some types share a class
            classes.add(name)
            found.append(kind)
    return found


def make(group: str, name: str) -> Sample:
    """A small random model of a type, and inputs for it."""
    import transformers

    transformers.logging.set_verbosity_error()
    config = transformers.CONFIG_MAPPING[name]()
    shrink(config, widths(config))
    for part in configs(config):
        for option in ("use_cache", "return_dict_in_generate"):
            if hasattr(part, option):
                setattr(part, option, False)
    architecture = getattr(transformers, _table(group)[name])
    torch.manual_seed(0)
    try:
        with torch.device("meta"):
            size = sum(p.numel() for p in architecture(copy.deepcopy(config)).parameters())
        if size > 40e6:
            raise NotJudged(f"the rules leave {size / 1e6:.0f} million parameters")
        model = architecture(config).float()
    except NotJudged:
        raise
    except Exception as e:
        raise NotJudged(f"the small configuration does not build: {type(e).__name__}: {e}") from e
    if hasattr(model, "freeze_feature_encoder"):  # otherwise it sets `requires_grad` as it runs,
        model.freeze_feature_encoder()  # which no compiler traces; it is how such models are tuned
    with torch.no_grad():
        for p in model.parameters():  # the usual start has zeros that would hide what follows
            if p.is_floating_point() and not p.any():
                p.copy_(torch.randn_like(p) * 0.02)
    torch.manual_seed(1)
    inputs = _that_run(model, _inputs(model, config))
    return Sample(model, inputs, type(model).__name__)


def _first(config: Any, *names: str, default: Any = None) -> Any:
    """The first of some attributes that the configuration or a part of it has."""
    for name in names:
        for part in configs(config):
            value = getattr(part, name, None)
            if value is not None:
                return value
    return default


def _ids(high: int = 90, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(5, high, (BATCH, length))


def _image(config: Any) -> torch.Tensor:
    size = _first(config, "image_size", "img_size", default=64)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    channels = _first(config, "num_channels", "in_channels", "in_chans", default=3)
    return torch.randn(BATCH, channels if isinstance(channels, int) else 3, height, width)


def _audio(config: Any) -> list[torch.Tensor]:
    """Features in time, in the orders and lengths that models have."""
    names = ("num_mel_bins", "input_feat_per_channel", "mel_bins", "feature_size", "input_size")
    bins = [_first(config, name) for name in (*names, "feature_projection_input_dim")]
    bins = list(dict.fromkeys(n for n in [*bins, 80, 128] if isinstance(n, int)))
    most = _first(config, "max_source_positions")
    lengths = [64, *([2 * most] if isinstance(most, int) else [])]
    length = _first(config, "max_length")
    if hasattr(config, "frequency_stride") and isinstance(length, int):
        lengths.insert(0, length)
    places = [(n, t) for n in bins for t in lengths]
    found = [torch.randn(BATCH, t, n) for n, t in places]
    return found + [torch.randn(BATCH, n, t) for n, t in places]


def _inputs(model: nn.Module, config: Any) -> list[dict[str, Any]]:
    """Inputs that the model may take, the likeliest first."""
    parameters = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    found: dict[str, Any] = {}
    audio = next((n for n in ("input_values", "input_features") if n in parameters), None)
    if "input_ids" in parameters and not (audio and main == audio):
        found["input_ids"] = _ids(min(90, VOCABULARY))
    if "pixel_values" in parameters:
        found["pixel_values"] = _image(config)
    if "pixel_values_videos" in parameters and "pixel_values" not in parameters:
        frames = _first(config, "num_frames", "frames_per_clip", default=8)
        found["pixel_values_videos"] = _image(config).unsqueeze(1).repeat(1, frames, 1, 1, 1)
    if "decoder_input_ids" in parameters:
        found["decoder_input_ids"] = _ids()
    if "bbox" in parameters:
        low = torch.randint(0, 40, (BATCH, LENGTH, 2))
        found["bbox"] = torch.cat([low, low + 20], -1)
    if main not in found and main in parameters and main != audio:
        raise NotJudged(f"no rule makes the input {main}")
    if "input_ids" in found and "pixel_values" in found:
        _with_image_tokens(model, config, found)
    if audio is None and "pixel_values" in found:
        frames = _first(config, "num_frames", default=8)
        video = found["pixel_values"].unsqueeze(1).repeat(1, frames, 1, 1, 1)
        return [found, {**found, "pixel_values": video}]
    if audio is None:
        return [found]
    wave = torch.randn(BATCH, 4000) * 0.3
    waves = [wave, wave.unsqueeze(1)] if audio == "input_values" else []
    return [{**found, audio: a} for a in [*waves, *_audio(config)]]


def _that_run(model: nn.Module, candidates: list[dict[str, Any]]) -> dict[str, Any]:
    """The first inputs that the model takes.

    The call also lets the model install the hooks that transformers installs under a lock, which
    no compiler traces, when it is first called.
    """
    errors = []
    for inputs in candidates:
        try:
            with torch.no_grad():
                model.eval()(**inputs)
            return inputs
        except Exception as e:
            errors.append(f"{type(e).__name__}: {e}")
    raise NotJudged(f"forward on the CPU: {errors[0]}")


def _with_image_tokens(model: nn.Module, config: Any, found: dict[str, Any]) -> None:
    """Put as many image tokens into the text as the image has features."""
    token = next(
        (
            value
            for name in ("image_token_id", "image_token_index")
            if isinstance(value := getattr(config, name, None), int)
        ),
        None,
    )
    features = getattr(model, "get_image_features", None)
    if token is None or features is None:
        return
    with torch.no_grad():
        try:
            made = features(pixel_values=found["pixel_values"])
        except Exception as e:
            raise NotJudged(f"no rule makes the images: {type(e).__name__}: {e}") from e
    made = getattr(made, "pooler_output", made)
    parts = made if isinstance(made, (list, tuple)) else [made]
    count = sum(p.numel() // p.shape[-1] for p in parts) // BATCH
    ids = found["input_ids"]
    image = torch.full((BATCH, count), token)
    found["input_ids"] = torch.cat([ids[:, :2], image, ids[:, 2:]], 1)
    if "token_type_ids" in inspect.signature(model.forward).parameters:
        found["token_type_ids"] = torch.zeros_like(found["input_ids"])
