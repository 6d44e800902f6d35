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


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, mask, extra):
        return (self.layer(x) * mask + extra[0][1]["bias"]).sum()


class Masked(nn.Module):
    """A loss over the positions whose label is positive."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        self.head = nn.Linear(16, 100)

    def forward(self, x, y):
        positive = y > 40
        return nn.functional.cross_entropy(self.head(self.embedding(x)[positive]), y[positive])


class Holder(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, y):
        return self.inner(x, y)


class BurningError(Exception):
    pass


class Broken(Tower):
    def through(self, layer, hidden):  # noqa: ARG002
        raise BurningError("the cluster is on fire")
