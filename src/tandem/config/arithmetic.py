"""Arithmetic in configurations, `${mul:2,3}`, with bounded results."""

from __future__ import annotations

import math

MOST = 2**63  # of an integer: chained products could grow without bound


def multiply(*factors: float) -> float:
    """The product. Raises ValueError for values other than numbers, such as lists."""
    if strange := [factor for factor in factors if type(factor) not in (int, float)]:
        raise ValueError(f"mul takes numbers, got {strange[0]}")
    product = math.prod(factors)
    if isinstance(product, int) and abs(product) > MOST:
        raise ValueError("mul gives an integer beyond 2**63")
    return product


def add(*terms: float) -> float:
    return math.fsum(terms)


def power(base: float, exponent: float) -> float:
    """An integer if both arguments are integers and it is small, else a float."""
    result = math.pow(base, exponent)
    whole = type(base) is type(exponent) is int and exponent >= 0
    return base**exponent if whole and abs(result) <= MOST else result
