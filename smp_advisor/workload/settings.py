"""A transformers configuration as plain values, each checked when it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ModelError
from smp_advisor.workload.activation import activation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.workload.activation import Activation
    from smp_advisor.workload.family import Family

__all__ = ["Settings"]

_MAXIMUM_SIZE = 10**9
_MAXIMUM_LAYERS = 10_000


class Settings:
    """A configuration's values, with its family's defaults filled in.

    Parameters
    ----------
    values
        What the configuration holds.
    source
        How to name the configuration in an error: its path, or "the configuration".
    """

    __slots__ = ("_values", "family", "source")

    def __init__(self, values: Mapping[str, Any], family: Family, source: str) -> None:
        given = dict(values)
        for alias, key in family.aliases.items():
            if alias in given and key not in given:
                given[key] = given.pop(alias)
        self._values: dict[str, Any] = {**family.defaults, **given}
        self.family = family
        self.source = source

    def as_dict(self) -> dict[str, Any]:
        """All values, defaults included."""
        return dict(self._values)

    def value(self, key: str) -> Any:
        """Value as it stands, None where there is none."""
        return self._values.get(key)

    def given(self, key: str) -> bool:
        """Whether the configuration sets the key to something other than null."""
        return self._values.get(key) is not None

    def size(self, key: str, *, default: int | None = None, least: int = 1) -> int:
        """Value that counts something, at least `least`; `default` where it is null or absent."""
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(f"{key} must be a whole number of at least {least}, not {value!r}")
        if value > _MAXIMUM_SIZE:
            raise self.error(f"{key} must be at most {_MAXIMUM_SIZE:,}, not {value:,}")
        return value

    def layers(self, key: str, *, default: int | None = None) -> int:
        """Number of layers."""
        count = self.size(key, default=default)
        if count > _MAXIMUM_LAYERS:
            raise self.error(f"{key} must be at most {_MAXIMUM_LAYERS:,}, not {count:,}")
        return count

    def flag(self, key: str) -> bool:
        """Value that is true or false."""
        value = self._values.get(key)
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {value!r}")
        return value

    def rate(self, key: str) -> float:
        """Share between 0 and 1, such as a dropout probability."""
        value = self._values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise self.error(f"{key} must lie between 0 and 1, not {value!r}")
        return float(value)

    def activation(self, key: str, name: str | None = None) -> Activation:
        """Activation function of a key, or the one of this `name` that the key's value stands for."""
        try:
            return activation(name or self._values.get(key))
        except ModelError as error:
            raise self.error(f"{key}: {error}".removesuffix(".")) from None

    def head_dim(self, hidden: int, heads: int, key: str | None = None) -> int:
        """Width of a head: its own key where the family has one and it is set, else hidden / heads."""
        if key is not None and self.given(key):
            return self.size(key)
        if hidden % heads:
            raise self.error(f"the hidden size {hidden} must be a multiple of the {heads} attention heads")
        return hidden // heads

    def labels(self) -> int:
        """Classes of a classification head; transformers assumes two."""
        names = self._values.get("id2label")
        if isinstance(names, dict) and names:
            return len(names)
        return self.size("num_labels", default=2)

    def error(self, problem: str) -> ModelError:
        """Error that names the configuration."""
        return ModelError(f"In {self.source}, {problem}.")
