"""Modules whose arguments have unusual sizes."""

import torch
from torch import nn


class LongLoop(nn.Module):
    """A loop over tokens, with a table of far more rows than tokens of any job."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(6, 6)
        self.register_buffer("rows", torch.zeros(400_000, 2))

    def forward(self, x):
        state = x[:, 0]
        for token in range(x.shape[1]):
            state = torch.tanh(self.cell(state) + x[:, token])
        return state


class SlicedTable(nn.Module):
    """Patches of 32 pixels with a table of 8 x 8 positions, of which smaller images take the first ones."""

    def __init__(self):
        super().__init__()
        self.heads_pos = nn.Parameter(torch.zeros(16, 4))
        self.patches = nn.Conv2d(3, 4, 32, stride=32)
        self.pos_embedding = nn.Parameter(torch.zeros(1, 64, 4))

    def forward(self, img):
        tokens = self.patches(img).flatten(2).transpose(1, 2)
        return (tokens + self.pos_embedding[:, : tokens.shape[1]]) @ self.heads_pos.T


class Coded(nn.Module):
    """Codes of a table next to numbers."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.numbers = nn.Linear(13, 8)

    def forward(self, codes, values):
        return self.table(codes).mean(1) + self.numbers(values)


class OfOneNumber(nn.Module):
    """A layer that is called with a number instead of a tensor with dimensions."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return self.layer(x.sum())


_CLASSES = (LongLoop, SlicedTable, Coded, OfOneNumber)
MODULES = {module.__name__: module for module in _CLASSES}
