"""Keyed randomness: every draw is a function of its key, never of a generator's state.

A key names the draw (seed, purpose, iteration, slot, sample, step), so a run repeats bit for bit,
resumes without generator state, and does not depend on batch size, padding or ranks. The integers
come from the SplitMix64 finaliser (Steele, Lea & Flood 2014) in wrap-around int64 arithmetic, hence
the same bits on any device.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

Key = int | Tensor  # 64 bits; a tensor holds one key per row

# As signed 64-bit values, for products with tensors and with Python integers.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
STEPS = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))  # shift, multiply


def key(*names: int | str | Tensor, after: Key = 0) -> Key:
    """Fold names into one 64-bit key; a tensor [B] among them makes the key [B].

    after: a key whose names come before these: key(b, after=key(a)) is key(a, b).
    """
    state = _to_int64(after)
    for name in names:
        match name:
            case Tensor():
                name = name.long()  # no tensor of the state: creating one would wait for a GPU
            case str():
                name = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
        state = _to_int64(state + GOLDEN) ^ _to_int64(name)
        for by, multiplier in STEPS:
            state = _to_int64((state ^ _shift(state, by)) * multiplier)
        state = state ^ _shift(state, 31)
    return state if isinstance(state, Tensor) else state % 2**64


def bits(keys: Key, shape: tuple[int, ...] = (), device: torch.device | str = "cpu") -> Tensor:
    """Uniform int64. One draw per index of `shape`: [*keys.shape, *shape]."""
    if not isinstance(keys, Tensor):
        keys = torch.tensor(_to_int64(keys), device=device)
    index = torch.arange(math.prod(shape), device=keys.device).view(shape)
    return at(keys.view((*keys.shape, *[1] * len(shape))), index)


def at(keys: Tensor, index: Tensor) -> Tensor:
    """The draw of each index under each key, int64; the two broadcast: [...]."""
    # As in `key`, but in place: image noise is large, and copies cost more than arithmetic.
    drawn = keys + (index + 1) * GOLDEN
    for by, multiplier in STEPS:
        drawn.bitwise_xor_(_shift(drawn, by)).mul_(multiplier)
    return drawn.bitwise_xor_(_shift(drawn, 31))


def unit(drawn: Tensor) -> Tensor:
    """int64 bits -> float64 in (0, 1), never 0 and never 1: [...] -> [...]."""
    fraction = _shift(drawn, 11).double()
    # The largest of the 2^53 values would round up to 1.
    return fraction.add_(0.5).mul_(2.0**-53).clamp_(max=1 - 2.0**-53)


def uniform(keys: Key, shape: tuple[int, ...] = (), device: torch.device | str = "cpu") -> Tensor:
    """float64 in (0, 1): [*keys.shape, *shape]."""
    return unit(bits(keys, shape, device))


def normal(keys: Key, shape: tuple[int, ...] = (), device: torch.device | str = "cpu") -> Tensor:
    """Standard normal float32 (Box-Muller in float64, then rounded): [*keys.shape, *shape]."""
    first, second = bits(keys, (*shape, 2), device).unbind(-1)
    radius = unit(first).log_().mul_(-2).sqrt_()
    return radius.mul_(unit(second).mul_(2 * math.pi).cos_()).float()


def gumbel(drawn: Tensor) -> Tensor:
    """Standard Gumbel float32 from int64 bits: argmax(logits + gumbel) draws from the softmax.

    Shape: [...] -> [...].
    """
    return unit(drawn).log_().neg_().log_().neg_().float()


def permutation(keys: int, size: int) -> Tensor:
    """A uniformly random order of range(size): [size] int64."""
    return bits(keys, (size,)).argsort(stable=True)


def _shift(z: Key, by: int) -> Key:
    """Logical right shift of 64 bits (signed numbers shift arithmetically)."""
    shifted, lowest = z >> by, (1 << (64 - by)) - 1
    return shifted.bitwise_and_(lowest) if isinstance(z, Tensor) else shifted & lowest


def _to_int64(z: Key) -> Key:
    """The lowest 64 bits as a Python int in the range of int64; tensors are int64 already."""
    return z if isinstance(z, Tensor) else (z + 2**63) % 2**64 - 2**63
