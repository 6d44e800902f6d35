"""Inputs of object detectors: a list of images, and for each a dictionary with its boxes."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from smp_advisor.profiling.example import ExampleInputs
from smp_advisor.profiling.forward_source import forward_arguments

if TYPE_CHECKING:
    from torch import nn

__all__ = ["detection_inputs"]

_IMAGE_SIZE = 256
_BOX = (64.0, 64.0, 192.0, 192.0)
"""Left, top, right and bottom of the box of each image, in pixels."""
_KEYPOINTS = 17
"""Those of a person in COCO."""


def detection_inputs(model: nn.Module) -> ExampleInputs | None:
    """Images with boxes if the forward method reads ``images`` and the boxes of ``targets``; None if not."""
    if list(forward_arguments(model))[:2] != ["images", "targets"] or not _reads_boxes(model):
        return None

    def make(batch: int, _: int) -> dict[str, Any]:
        images = [torch.empty(3, _IMAGE_SIZE, _IMAGE_SIZE, device="meta") for _ in range(batch)]
        return {"images": images, "targets": [_target() for _ in range(batch)]}

    description = f"images: a list of images of {_IMAGE_SIZE} x {_IMAGE_SIZE}, targets: one box per image (inferred)"
    return ExampleInputs(make=make, has_sequence=False, longest=0, description=description)


def _reads_boxes(model: nn.Module) -> bool:
    try:
        return '["boxes"]' in inspect.getsource(type(model).forward).replace("'", '"')
    except (OSError, TypeError):
        return False


def _target() -> dict[str, torch.Tensor]:
    points = torch.tensor([(_BOX[0] + 4 * i, _BOX[1] + 4 * i, 1.0) for i in range(_KEYPOINTS)])
    mask = torch.zeros(1, _IMAGE_SIZE, _IMAGE_SIZE, dtype=torch.uint8)
    left, top, right, bottom = map(int, _BOX)
    mask[:, top:bottom, left:right] = 1
    return {
        "boxes": torch.tensor([_BOX]),
        "labels": torch.ones(1, dtype=torch.int64),
        "masks": mask,
        "keypoints": points[None],
    }
