"""Modules whose forward passes read values of tensors: checks, counters, lengths, edges, masks and random numbers."""

import torch
from torch import nn


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.input = nn.Linear(16, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.register_buffer("calls", torch.tensor(0))

    def run(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Checked(Layers):
    """An assertion, and an error for large values: the values with which they pass differ."""

    def forward(self, x):
        assert x.isfinite().all(), "x has values that are not numbers"
        if x.max() > 1e6:
            raise ValueError("values are too large")
        return self.run(self.input(x))


class Counted(Layers):
    """Draws new features after a number of steps, which a buffer counts."""

    def forward(self, x):
        if self.training and self.calls >= 1000:
            x = self.input(self.input(x))
        self.calls += 1
        return self.run(self.input(x))


class Padded(Layers):
    """Cuts its input to the longest sample."""

    def forward(self, x, lengths):
        longest = int(lengths.max().item())
        mask = torch.arange(longest, device=x.device)[None, :] < lengths[:, None]
        return self.run(self.input(x[:, :longest])) * mask[..., None]


class Looped(Layers):
    """A graph without its self-loops, as shapes that depend on values."""

    def forward(self, x, edge_index):
        edge_index = edge_index[:, edge_index[0] != edge_index[1]]
        x = self.input(x)
        return self.run(torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]]))


class Resized(Layers):
    """Reads the sizes of a mask of ones that it creates."""

    def forward(self, x):
        rows = torch.ones(x.shape[0], x.shape[1], dtype=torch.long).sum(1)[0]
        return self.run(self.input(x[:, :rows]))


class Dropped(Layers):
    """Skips layers at random."""

    def forward(self, x):
        x = self.input(x)
        for layer in self.layers:
            if torch.rand(1).item() > 0.1:
                x = torch.relu(layer(x))
        return x
