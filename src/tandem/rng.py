"""Keyed randomness: every draw is a function of its key, never of a generator's state.

A key names the draw (seed, purpose, iteration, slot, sample, step), so a run repeats bit for bit,
resumes without generator state, and batch size, padding and ranks move nothing. The integers come
from the SplitMix64 finaliser (Steele, Lea & Flood 2014) in wrap-around int64 arithmetic, hence the
same bits on any device.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

Key = int | Tensor  # 64 bits; a tensor holds one key per row

GOLDEN = 0x9E3779B97F4A7C15
STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # shift, then multiply


def key(*names: int | str | Tensor) -> Key:
    """Fold names into one 64-bit key; a tensor [B] among them makes the key [B]."""
    return further(0, *names)


def further(state: Key, *names: int | str | Tensor) -> Key:
    """Fold more names into a key: further(key(a), b) is key(a, b)."""
    for name in names:
        if isinstance(name, Tensor):
            state = torch.as_tensor(_signed(state), dtype=torch.int64, device=name.device)
        state = _mix(_add(state, GOLDEN) ^ _as_bits(name, state))
    return state


def bits(keys: Key, shape: tuple[int, ...] = (), device: torch.device | str = "cpu") -> Tensor:
    """Uniform int64. One draw per index of `shape`: [*keys.shape, *shape]."""
    if not isinstance(keys, Tensor):
        keys = torch.tensor(_signed(keys), device=device)
    index = torch.arange(math.prod(shape), device=keys.device).view(shape)
    return at(keys.view((*keys.shape, *[1] * len(shape))), index)


def at(keys: Tensor, index: Tensor) -> Tensor:
    """The draw of each index under each key, int64; the two broadcast."""
    # `_mix` in place, as all below: the noise of pictures is long, and copies cost more than sums.
    drawn = keys + (index + 1) * _signed(GOLDEN)
    for by, multiplier in STEPS:
        drawn.bitwise_xor_(_shift(drawn, by)).mul_(_signed(multiplier))
    return drawn.bitwise_xor_(_shift(drawn, 31))


def unit(drawn: Tensor) -> Tensor:
    """int64 bits -> float64 in (0, 1), never 0 and never 1."""
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
    """Standard Gumbel float32 from int64 bits: argmax(logits + gumbel) draws from the softmax."""
    return -(-unit(drawn).log()).log().float()


def permutation(keys: int, size: int) -> Tensor:
    """A uniformly random order of range(size): [size] int64."""
    return bits(keys, (size,)).argsort(stable=True)


def _as_bits(name: int | str | Tensor, state: Key) -> Key:
    if isinstance(name, str):
        name = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
    if isinstance(name, Tensor):
        return name.long()
    return _signed(name) if isinstance(state, Tensor) else _unsigned(name)


def _mix(z: Key) -> Key:
    for by, multiplier in STEPS:
        z = _multiply(z ^ _shift(z, by), multiplier)
    return z ^ _shift(z, 31)


def _add(z: Key, constant: int) -> Key:
    return z + _signed(constant) if isinstance(z, Tensor) else _unsigned(z + constant)


def _multiply(z: Key, constant: int) -> Key:
    return z * _signed(constant) if isinstance(z, Tensor) else _unsigned(z * constant)


def _shift(z: Key, by: int) -> Key:
    """Logical right shift of 64 bits (int64 tensors shift arithmetically)."""
    shifted, lowest = z >> by, (1 << (64 - by)) - 1
    return shifted.bitwise_and_(lowest) if isinstance(z, Tensor) else shifted & lowest


def _unsigned(z: int) -> int:
    return z & (1 << 64) - 1


def _signed(z: Key) -> Key:
    """The same 64 bits as a Python int in int64's range."""
    if isinstance(z, Tensor):
        return z
    z = _unsigned(z)
    return z if z < 1 << 63 else z - (1 << 64)
