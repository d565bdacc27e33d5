"""One operation on two numbers, as the small worlds write it."""

import re

_CALL = re.compile(r"([0-9]{1,6})(\+|--|-|\*)([0-9]{1,6})")
_COMPUTE = {"+": int.__add__, "--": int.__add__, "-": int.__sub__, "*": int.__mul__}


def value_of(call: str) -> int | None:
    """The value of `a+b`, `a-b`, `a--b` (plus) or `a*b`; None for anything else."""
    match = _CALL.fullmatch(call)
    return _COMPUTE[match[2]](int(match[1]), int(match[3])) if match else None
