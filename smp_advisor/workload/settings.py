"""A transformers configuration as plain values. Each value is checked when it is read."""

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
        Values of the configuration.
    source
        Name of the configuration in an error: its path, or "the configuration".
    """

    __slots__ = ("_values", "family", "source")

    def __init__(self, values: Mapping[str, Any], family: Family, source: str) -> None:
        by_key = dict(values)
        for alias, key in family.aliases.items():
            if alias in by_key and key not in by_key:
                by_key[key] = by_key.pop(alias)
        self._values: dict[str, Any] = {**family.defaults, **by_key}
        self.family = family
        self.source = source

    def as_dict(self) -> dict[str, Any]:
        """All values, defaults included."""
        return dict(self._values)

    def value(self, key: str) -> Any:
        """Unchecked value of a key, or None."""
        return self._values.get(key)

    def is_set(self, key: str) -> bool:
        """Whether the key has a value other than null."""
        return self._values.get(key) is not None

    def size(self, key: str, *, default: int | None = None, least: int = 1) -> int:
        """Whole number of at least `least`. `default` replaces a null or missing value."""
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(f"{key} must be a whole number of at least {least}, not {value!r:.80}")
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
        """Boolean value of a key."""
        value = self._values.get(key)
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {value!r:.80}")
        return value

    def rate(self, key: str) -> float:
        """Share between 0 and 1, such as a dropout probability."""
        value = self._values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise self.error(f"{key} must be between 0 and 1, not {value!r:.80}")
        return float(value)

    def activation(self, key: str, name: str | None = None) -> Activation:
        """Activation function of a key, or the function `name` that the key's value implies."""
        try:
            return activation(name or self._values.get(key))
        except ModelError as error:
            raise self.error(f"{key}: {error}".removesuffix(".")) from None

    def head_dim(self, hidden: int, heads: int, key: str | None = None) -> int:
        """Width of a head: the value of the family's `key` where it is set, else hidden / heads."""
        if key is not None and self.is_set(key):
            return self.size(key)
        if hidden % heads:
            raise self.error(f"the hidden size {hidden} must be a multiple of the {heads} attention heads")
        return hidden // heads

    def refuse_cross_attention(self) -> None:
        """Raise for a configuration of BERT or GPT-2 with cross-attention."""
        if self.flag("add_cross_attention"):
            raise self.error("add_cross_attention must be false: a decoder with cross-attention is read as T5 only")

    def labels(self) -> int:
        """Classes of a classification head. The default of transformers is two."""
        names = self._values.get("id2label")
        if isinstance(names, dict) and names:
            return len(names)
        return self.size("num_labels", default=2)

    def error(self, problem: str) -> ModelError:
        """Error with the name of the configuration."""
        return ModelError(f"In {self.source}, {problem}.")
