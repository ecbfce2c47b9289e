"""What must agree after each step: errors, metadata, aliasing, and the bytes of every storage.

Whole storages are compared rather than tensors, so that a write that spoils a neighbour shows.
Steps that round (sums, products) may differ within the dtype's tolerance; the CPU's side then takes
over the device's bits, so that later steps start from equal values again.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.op_cases import closeness

Tensor = torch.Tensor
FLOAT8 = tuple(getattr(torch, n) for n in dir(torch) if n.startswith("float8_"))


class Difference(AssertionError):
    """The two sides disagree."""


def tensors(names: dict[str, Any]) -> dict[str, Tensor]:
    """The live tensors of a namespace and their gradients, by name."""
    found = {}
    for name, value in names.items():
        if isinstance(value, Tensor):
            found[name] = value
            if _of_autograd(value)["leaf"] is True and value.grad is not None:
                found[f"{name}.grad"] = value.grad
    return found


def facts(t: Tensor) -> dict[str, Any]:
    """Everything about a tensor but its values and its device."""
    found = {
        "shape": tuple(t.shape),
        "stride": t.stride() if t.numel() else (),
        "storage_offset": t.storage_offset(),
        "dtype": t.dtype,
        "contiguous": t.is_contiguous(),
        "conj": t.is_conj(),
        "neg": t.is_neg(),
        "version": t._version,
        "view": t._base is not None,
        **_of_autograd(t),
        "storage bytes": t.untyped_storage().nbytes(),
    }
    if t.dim() == 4 and t.numel():
        found["channels_last"] = t.is_contiguous(memory_format=torch.channels_last)
    return found


def _of_autograd(t: Tensor) -> dict[str, Any]:
    """What autograd knows; it refuses to say for a view that a forbidden write has spoilt."""
    try:
        name = type(t.grad_fn).__name__
        return {"requires_grad": t.requires_grad, "leaf": t.is_leaf, "grad_fn": name}
    except RuntimeError:
        return {"leaf": "refused"}


def aliasing(live: dict[str, Tensor]) -> dict[str, tuple[str, str]]:
    """For each tensor, the first one that shares its storage, and the first at its address."""
    storages: dict[int, str] = {}
    addresses: dict[int, str] = {}
    found = {}
    for name, t in live.items():
        first = storages.setdefault(t.untyped_storage()._cdata, name)
        same = addresses.setdefault(t.data_ptr(), name) if t.numel() else name
        found[name] = (first, same)
    return found


def check_facts(cpu: dict[str, Tensor], tpu: dict[str, Tensor]) -> None:
    """Raises Difference unless the same names have the same facts and share the same storages."""
    if cpu.keys() != tpu.keys():
        raise Difference(f"tensors {sorted(tpu)} instead of {sorted(cpu)}")
    for name, t in cpu.items():
        expected, found = facts(t), facts(tpu[name])
        for what, value in expected.items():
            if found[what] != value:
                raise Difference(f"{name}: {what} {found[what]} instead of {value}")
    expected_alias, found_alias = aliasing(cpu), aliasing(tpu)
    for name, pair in expected_alias.items():
        if found_alias[name] != pair:
            raise Difference(
                f"{name}: shares (storage, address) with {found_alias[name]} instead of {pair}"
            )


def bytes_of(storage: torch.UntypedStorage) -> Tensor:
    """A storage's content, as a tensor over it (a copy if it is not on the CPU)."""
    return torch.empty(0, dtype=torch.uint8).set_(storage.cpu())


def over(t: Tensor, storage: torch.UntypedStorage) -> Tensor:
    """A tensor that lies in `storage` as `t` lies in its own; it has its own version counter."""
    raw = torch.empty(0, dtype=t.dtype)
    return raw.set_(storage, t.storage_offset(), t.shape, t.stride())


def check_values(
    cpu: dict[str, Tensor],
    tpu: dict[str, Tensor],
    judged: dict[str, tuple[str, Any, float]],
) -> None:
    """Compare the bytes of all storages.

    Args:
        judged: tensors that the step computed, by name: how ('nan': equal numbers, any bits of a
            NaN; 'close': within tolerance), a float64 reference or None, and a floor.

    Raises:
        Difference: names the tensor.
    """
    done = set()
    for name in [*judged, *cpu]:
        t = cpu[name]
        storage = t.untyped_storage()
        if storage._cdata in done and name not in judged:
            continue
        theirs = bytes_of(storage)
        ours = bytes_of(tpu[name].untyped_storage())
        if torch.equal(ours, theirs):
            done.add(storage._cdata)
            continue
        if name in judged:
            _judge(name, over(t, ours.untyped_storage()), over(t, storage), *judged[name])
            continue  # whether the rest of the storage is equal is asked when its turn comes
        done.add(storage._cdata)
        wrong = (ours != theirs).nonzero().flatten().tolist()
        raise Difference(
            f"{name}: the storage differs at bytes {wrong[:12]}: "
            f"{_shown(over(t, ours.untyped_storage()))} instead of {_shown(over(t, storage))}"
        )


def _judge(name: str, ours: Tensor, theirs: Tensor, how: str, reference: Any, floor: float) -> None:
    a, b = ours, theirs
    if isinstance(reference, Tensor) and (reference.is_conj() or reference.is_neg()):
        reference = None  # the storage holds what the bit stands over
    if a.dtype in FLOAT8:
        a, b, how = a.float(), b.float(), "nan"
    if a.is_complex() and how == "close":
        # Complex products of infinities are any of several non-finite numbers.
        odd = ~(b.isfinite() if b.numel() else torch.zeros(b.shape, dtype=torch.bool))
        if a[odd].isfinite().any():
            raise Difference(f"{name}: {_shown(a)} instead of {_shown(b)}")
        a, b, reference = a[~odd], b[~odd], None
    try:
        if how == "nan":
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
            if a.is_floating_point():
                assert torch.equal(a.signbit() | a.isnan(), b.signbit() | b.isnan()), "signs differ"
        else:
            closeness.assert_close(a, b, reference, floor=floor, label=name)
    except AssertionError as e:
        raise Difference(f"{name}: {_shown(a)} instead of {_shown(b)}: {e}") from None
    if not _has_overlap(theirs):
        theirs.copy_(ours)


def _has_overlap(t: Tensor) -> bool:
    return any(s == 0 and n > 1 for n, s in zip(t.shape, t.stride(), strict=True))


def _shown(t: Tensor) -> str:
    return str((t.float() if t.dtype in FLOAT8 else t).tolist())
