"""Random values for arguments, among which are wrong ones of every kind."""

import math
from random import Random
from typing import Any

__all__ = ["TEXTS", "VALUES", "Values"]

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, -5, 1, 2, 3, 7, 16, 10**6, 10**9, 10**15, 10**30, -(10**30)),
    *(0.5, 1.5, 1e-300, 1e308, math.nan, math.inf, -math.inf),
    *("", " ", "a", "10B", "-5B", "0", "nan", "inf", "1e999", "9" * 5000, "a\0b", "x" * 100_000, "\ud800", "é", "²"),
    *("/dev/zero", "/dev/null", "../..", "~", b"x", [], [1], ["a"], (), (1, 2), {}, {"a": 1}, {1: 2}, set(), object()),
    *(print, int, ValueError("x"), range(3), complex(1, 2), "auto", "smp-v1", "smp-v2", "ddp", "fsdp"),
    *("bf16", "fp16", "each", "none", "ml.p4d.24xlarge", "s3://b/k"),
)
TEXTS = (
    *(value for value in VALUES if isinstance(value, str)),
    *("-", "--", "-1", "'", '"', '"a b"', "\\", "$HOME", "{x}", "%", "%%", "a=b", "="),
    *("NAME=[[[[", "NAME=" + "(" * 500),
    *("\n", "a\nb", "<script>", "1,2,,3", "1" + "0" * 400, "1e400", "-inf", "None", "True", "x" * 300, "a/" * 3000),
    *("__import__('os')", "ml.p5.48xlarge,any", "any", "smallest", "/proc/kmsg", "loop.json", "pipe.py", "zero.py"),
)
"""The same for words of a line."""


class Values:
    """Draws of values."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def any(self, *valid: object) -> Any:
        """A value of any kind; as often one of the valid ones, if there are any."""
        return self.random.choice(valid) if valid and self.random.random() < 0.5 else self.random.choice(VALUES)

    def some(self, names: tuple[str, ...] | list[str], most: int = 2) -> dict[str, Any]:
        """Keywords of some names."""
        count = self.random.randint(1, most)
        return {name: self.any() for name in self.random.sample(list(names), count)}

    def text(self, *valid: str) -> str:
        """A text of any kind; as often one of the valid ones, if there are any."""
        return self.random.choice(valid) if valid and self.random.random() < 0.5 else self.random.choice(TEXTS)
