"""Modules whose arguments have widths that no name or attribute shows, only the layers that read them."""

import torch
from torch import nn


class Conditioned(nn.Module):
    """An image, eight times larger conditions of other channels, and a style of another width."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Conv2d(4, 8, 3, padding=1)
        self.shrink = nn.Sequential(nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.Conv2d(8, 8, 4, stride=4))
        self.text = nn.Linear(24, 8)

    def forward(self, picture, hint, style):
        return self.mixed([picture, hint], style)

    def mixed(self, pictures, style):
        hidden = self.inner(pictures[0]) + self.shrink(pictures[1])
        return hidden + self.text(style)[:, :, None, None]


class Frames(nn.Module):
    """Numbers over time, of which a transposed view is convolved after a table was read."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.stem = nn.Conv1d(83, 16, 5)
        self.head = nn.Linear(20, 7)

    def forward(self, speaker, signal):
        return self.joined(speaker, *[signal])

    def joined(self, speaker, *signals):
        frames = self.stem(signals[0].transpose(1, 2)).mean(2)
        return self.head(torch.cat([frames, self.table(speaker)], 1))


class LargePictures(nn.Module):
    """Pictures that layers shorten 480 times."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(5, 4, 16, stride=16), nn.Conv2d(4, 4, 20, stride=20), nn.Conv2d(4, 2, 2))

    def forward(self, pictures):
        return self.layers(pictures)


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


_CLASSES = (Conditioned, Frames, LargePictures, LongLoop, SlicedTable, Coded, OfOneNumber)
MODULES = {module.__name__: module for module in _CLASSES}


def with_gradients(module, inputs):
    """Whether every parameter gets a gradient."""
    outputs = module(**inputs) if isinstance(inputs, dict) else module(*inputs)
    outputs.float().mean().backward()
    return all(isinstance(parameter.grad, torch.Tensor) for parameter in module.parameters())
