"""Modules whose forward methods take batches of several forms."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Zipped(nn.Module):
    """Two lists in one loop, of which only the second repeats equal layers."""

    def __init__(self):
        super().__init__()
        self.dilated = nn.ModuleList(nn.Conv1d(8, 8, 2, dilation=2**i) for i in range(4))
        self.mixed = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(4))

    def forward(self, x):
        for dilated, mixed in zip(self.dilated, self.mixed, strict=False):
            x = mixed(dilated(x))
        return x


class Sentiment(nn.Module):
    """Fewer classes than words."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(500, 8), nn.Linear(8, 2)

    def forward(self, batch):
        return F.cross_entropy(self.out(self.embed(batch.text)[:, -1]), batch.label)


class MinimalGPT(nn.Module):
    """Positions in a parameter, whose number is an attribute; only logits returned."""

    def __init__(self, width=48, vocab=512, positions=256):
        super().__init__()
        self.tok_emb = nn.Embedding(vocab, width)
        self.pos_emb = nn.Parameter(torch.zeros(1, positions, width))
        self.head = nn.Linear(width, vocab, bias=False)
        self.block_size = positions

    def forward(self, idx):
        _, t = idx.size()
        assert t <= self.block_size, "Cannot forward, model block size is exhausted."
        return self.head(self.tok_emb(idx) + self.pos_emb[:, :t, :])


class Named(nn.Module):
    """Sequences with their channels last, and arguments whose names are usual."""

    def __init__(self):
        super().__init__()
        self.convs, self.time = nn.ModuleList([nn.Conv1d(8, 8, 3)]), nn.Linear(1, 8)

    def forward(self, x, timesteps, lengths, coords):
        x = x.transpose(1, 2)
        for conv in self.convs:
            x = conv(x)
        return x.mean() + self.time(timesteps[:, None]).mean() + lengths.float().mean() + coords.mean()


class Optional(nn.Module):
    """Like CLIP: both arguments are optional, and text has one length."""

    def __init__(self):
        super().__init__()
        self.context_length, self.image_size = 77, 64
        self.visual, self.words = nn.Conv2d(3, 4, 3), nn.Embedding(100, 4)

    def forward(self, image=None, text=None):
        return self.visual(image).mean() + self.words(text).mean()


class Graph(nn.Module):
    """A layer over the edges of a graph."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, edge_index):
        return self.layer(x)[edge_index[0]]


class Flattened(nn.Module):
    """The example of MNIST: its second part reads all numbers of a map of one size."""

    def __init__(self):
        super().__init__()
        self.conv, self.full = nn.Conv2d(1, 4, 3), nn.Linear(4 * 13 * 13, 10)

    def forward(self, pixels):
        return self.full(nn.functional.max_pool2d(self.conv(pixels), 2).flatten(1))
