"""Modules whose forward methods take batches of several forms."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)

    def forward(self, input_ids, attention_mask=None):  # noqa: ARG002
        return self.head(self.embed(input_ids))


class DictBatch(nn.Module):
    """Removes the labels, and passes the remaining keys on."""

    def __init__(self):
        super().__init__()
        self.model = Words()

    def forward(self, batch):
        labels = batch.pop("labels")
        return F.cross_entropy(self.model(**batch).flatten(0, 1), labels.flatten())


class PassedOn(DictBatch):
    def forward(self, **kwargs):
        labels = kwargs.pop("labels", None)
        logits = self.model(**kwargs)
        return logits if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 4))

    def forward(self, *args):
        return self.layers(*args)


@dataclass
class Fields:
    tokens: torch.Tensor
    targets: torch.Tensor
    mask: torch.Tensor | None = None


class NamedFields(DictBatch):
    def forward(self, batch: Fields):
        loss = F.cross_entropy(self.model(batch.tokens).transpose(1, 2), batch.targets, reduction="none")
        return (loss if batch.mask is None else loss * batch.mask).mean()


class PairStep(nn.Module):
    """No forward method, but a step that returns the loss."""

    def __init__(self):
        super().__init__()
        self.model = Words()

    def training_step(self, batch, batch_idx):  # noqa: ARG002
        x, y = batch
        return F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())


class GraphBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, data):
        hidden = self.first(data.x)
        start, end = data.edge_index
        return self.last(torch.zeros_like(hidden).index_add(0, end, hidden[start]))


class Forecast(nn.Module):
    """Three inputs of different widths, which three layers read."""

    def __init__(self):
        super().__init__()
        self.s, self.h, self.f = nn.Linear(3, 8), nn.Linear(7, 8), nn.Linear(4, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)

    def forward(self, static, history, future):
        x = torch.cat([self.h(history) + self.s(static)[:, None], self.f(future)], 1)
        return self.lstm(x)[0]


class Clicks(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item, self.dense = nn.Embedding(50, 8), nn.Embedding(60, 8), nn.Linear(13, 8)

    def forward(self, x):
        return (self.user(x["user_id"]) * self.item(x["item_id"]) * self.dense(x["dense"])).sum(-1)


class Columns(nn.Module):
    """One table of embeddings for all columns of categories."""

    def __init__(self, sizes=(10, 20, 20)):
        super().__init__()
        self.sizes = sizes
        self.register_buffer("offsets", torch.tensor([0, 10, 30]))
        self.table, self.out = nn.Embedding(sum(sizes), 4), nn.Linear(3 * 4, 1)

    def forward(self, x):
        return self.out(self.table(x + self.offsets).flatten(1))


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


class PairOrNodes(nn.Module):
    """Features of nodes, or a pair of them: as layers of graphs check it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 3)

    def forward(self, x, edge_index):
        if isinstance(x, torch.Tensor):
            x = (x, x)
        source, target = x
        return self.layer(target).index_add(0, edge_index[1], self.layer(source)[edge_index[0]])


class Sentiment(nn.Module):
    """Fewer classes than words."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(500, 8), nn.Linear(8, 2)

    def forward(self, batch):
        return F.cross_entropy(self.out(self.embed(batch.text)[:, -1]), batch.label)
