"""A batch whose parts are attributes, such as a dataclass or a graph."""

from __future__ import annotations

from typing import Any

from torch.utils._pytree import MappingKey, register_pytree_node

__all__ = ["Record"]


class Record(dict[str, Any]):
    """Values by name that are attributes, too; PyTorch's functions on nested inputs look into it."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def to(self, *_: object, **__: object) -> Record:
        """The record itself: its tensors are already on the device of the model."""
        return self


register_pytree_node(
    Record,
    lambda record: (list(record.values()), list(record)),
    lambda values, names: Record(zip(names, values, strict=True)),
    flatten_with_keys_fn=lambda record: ([(MappingKey(name), value) for name, value in record.items()], list(record)),
)
