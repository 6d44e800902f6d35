"""Models that a plain trace cannot follow, or not without help."""

import numpy as np
import torch
from torch import nn


class Tower(nn.Module):
    """Blocks that a subclass passes through in its own way."""

    def __init__(self, layers=4, width=16):
        super().__init__()
        self.embedding = nn.Embedding(64, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        hidden = self.embedding(x)
        for layer in self.layers:
            hidden = self.through(layer, hidden)
        return hidden.float().mean()

    def through(self, layer, hidden):
        return layer(hidden)


class ByValue(Tower):
    def through(self, layer, hidden):
        return layer(hidden) if hidden.sum().item() > 0 else hidden


class ByNumPy(Tower):
    def through(self, layer, hidden):
        return layer(hidden) * float(np.float32(hidden.detach().numpy().max()))


class ByIndex(Tower):
    def forward(self, x):
        hidden = self.embedding(x)
        for place in range(4):
            hidden = self.layers[place](hidden)
        return hidden.float().mean()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):  # noqa: ARG004
        return 2 * gradient


class CustomGradient(Tower):
    def through(self, layer, hidden):
        return Doubled.apply(layer(hidden))


class Broken(Tower):
    def through(self, layer, hidden):  # noqa: ARG002
        raise RuntimeError("the cluster is on fire")
