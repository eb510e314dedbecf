"""Arithmetic of configurations, `${mul:2,3}`: whoever wrote one, its numbers stay small."""

from __future__ import annotations

import math

MOST = 2**63  # of a whole number: a chain of products would double its digits at each link


def multiply(*factors: float) -> float:
    """The product. Raises ValueError for what is no number: a list times a number is a longer
    list."""
    if strange := [factor for factor in factors if type(factor) not in (int, float)]:
        raise ValueError(f"mul takes numbers, got {strange[0]}")
    product = math.prod(factors)
    if isinstance(product, int) and abs(product) > MOST:
        raise ValueError("mul gives a whole number beyond 2**63")
    return product


def add(*terms: float) -> float:
    return math.fsum(terms)


def power(base: float, exponent: float) -> float:
    """A whole number where both are whole and it is small, and a float otherwise."""
    result = math.pow(base, exponent)
    whole = type(base) is type(exponent) is int and exponent >= 0
    return base**exponent if whole and abs(result) <= MOST else result
