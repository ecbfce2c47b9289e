"""Arithmetic of axis permutations, for the layout pass.

`p` stands for `x.transpose(p)`, NumPy's convention: axis i of the result is axis p[i] of x. Shapes
and tuples only; nothing here touches a graph.
"""

from __future__ import annotations

from collections.abc import Sequence

Perm = tuple[int, ...]


def identity(rank: int) -> Perm:
    """The permutation that changes nothing."""
    return tuple(range(rank))


def inverse(p: Perm) -> Perm:
    """The permutation that undoes `p`."""
    result = [0] * len(p)
    for i, axis in enumerate(p):
        result[axis] = i
    return tuple(result)


def compose(p: Perm, q: Sequence[int]) -> Perm:
    """`x.transpose(p).transpose(q)` as one permutation."""
    return tuple(p[i] for i in q)


def permuted(items: Sequence[int], p: Perm) -> tuple[int, ...]:
    """The shape of `x.transpose(p)` for x of shape `items`."""
    return tuple(items[i] for i in p)


def moves_data(shape: Sequence[int], p: Perm) -> bool:
    """Whether axes longer than 1 change their order; if not, a reshape does the same."""
    long = [axis for axis in p if shape[axis] != 1]
    return long != sorted(long)


def without(p: Perm, dropped: Sequence[int]) -> Perm:
    """`p` for what is left when the axes `dropped` (of the result) are gone."""
    left = [axis for i, axis in enumerate(p) if i not in dropped]
    order = sorted(left)
    return tuple(order.index(axis) for axis in left)


def reshape_groups(
    old: Sequence[int], new: Sequence[int]
) -> list[tuple[list[int], list[int]]] | None:
    """Minimal groups of neighbouring axes with equal products, axes of length 1 left out.

    None when the shapes hold no elements.
    """
    if 0 in old:
        return None
    a = [i for i, d in enumerate(old) if d != 1]
    b = [i for i, d in enumerate(new) if d != 1]
    groups: list[tuple[list[int], list[int]]] = []
    while a:
        left, right = [a.pop(0)], [b.pop(0)]
        x, y = old[left[0]], new[right[0]]
        while x != y:
            if x < y:
                left.append(a.pop(0))
                x *= old[left[-1]]
            else:
                right.append(b.pop(0))
                y *= new[right[-1]]
        groups.append((left, right))
    return groups


def gather_groups(base: Sequence[int], p: Perm, new: Sequence[int]) -> Perm | None:
    """The least reordering r of x after which `reshape_through` exists for `x.transpose(r)`.

    Axes that the reshape merges come to stand together; all else keeps its order in x.
    """
    groups = reshape_groups(permuted(base, p), new)
    if groups is None:
        return None
    axes = sorted(([p[i] for i in left] for left, _ in groups), key=min)
    ones = [a for a in range(len(base)) if base[a] == 1]
    return (*ones, *(a for group in axes for a in group))


def reshape_through(
    base: Sequence[int], p: Perm, new: Sequence[int]
) -> tuple[tuple[int, ...], Perm] | None:
    """`x.transpose(p).reshape(new)` as `x.reshape(shape).transpose(q)`: (shape, q), or None.

    It exists when every group of axes that is merged stands together, in order, in x.
    """
    groups = reshape_groups(permuted(base, p), new)
    if groups is None:
        return None
    rank_in_base = {axis: i for i, axis in enumerate(a for a in range(len(base)) if base[a] != 1)}
    placed = []
    for left, right in groups:
        positions = [rank_in_base[p[i]] for i in left]
        if positions != list(range(positions[0], positions[0] + len(positions))):
            return None
        placed.append((positions[0], right))
    order = [axis for _, right in sorted(placed) for axis in right]
    if order == sorted(order):
        return tuple(new), identity(len(new))
    # Axes of length 1 go behind the axis that they follow in the new shape, else to the front.
    result: list[int] = []
    ones_after: dict[int, list[int]] = {}
    last = -1
    for axis, d in enumerate(new):
        if d == 1:
            ones_after.setdefault(last, []).append(axis)
        else:
            last = axis
    result += ones_after.get(-1, [])
    for axis in order:
        result += [axis, *ones_after.get(axis, [])]
    return tuple(new[a] for a in result), inverse(tuple(result))
