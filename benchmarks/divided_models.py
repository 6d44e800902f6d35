"""Models with a fault that the division of a batch shows, and sound ones, for its test.

A fault counts as found if a problem contains its cause, and its parameter where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from smp_advisor import Job, Plan
from smp_advisor.errors import ProfileError
from smp_advisor.profiling.division import run
from smp_advisor.profiling.profiled_model import read_model

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH, VOCABULARY, TOKENS = 16, 40, 8

DDP = Plan(library="ddp", batch_size=4, gradient_accumulation_steps=2)
PIPELINE = Plan(pipeline_parallel_degree=2, microbatches=4, batch_size=8)


@dataclass(frozen=True)
class Case:
    """A model to divide; `causes` are phrases of which the report of a fault must contain one."""

    name: str
    make: Callable[[], Any]
    plan: Any = DDP
    causes: tuple[str, ...] = ()
    parameter: str = ""
    """Name that the report must contain."""
    data: int = 2


class Block(nn.Module):
    """A feed-forward block with a residual connection."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.fc, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.out(F.gelu(self.fc(self.norm(x)))))


class Words(nn.Module):
    """A small language model; subclasses change its loss or its blocks."""

    def __init__(self, block: Callable[[], nn.Module] = Block, layers: int = 4) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def hidden(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.embed(x)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.hidden(x)).flatten(0, 1), y.flatten())


class Rows(nn.Module):
    """A small regression or classification model on rows of numbers; subclasses define the loss."""

    def __init__(self, *, layers: int = 3) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.enter = nn.Linear(12, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.leave = nn.Linear(WIDTH, 6)

    def hidden(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.enter(x)
        for block in self.blocks:
            hidden = block(hidden)
        return self.leave(hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden(x).square().mean()


class SumOfSquares(Rows):
    def forward(self, x: Tensor) -> Tensor:
        return (self.hidden(x) - 1).square().sum()


class Contrastive(Rows):
    def forward(self, x: Tensor) -> Tensor:
        first, second = F.normalize(self.hidden(x), dim=-1), F.normalize(self.hidden(x * 1.1 + 0.2), dim=-1)
        return F.cross_entropy(first @ second.T / 0.1, torch.arange(x.shape[0]))


class MeanWithoutPadding(Words):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        losses = F.cross_entropy(self.head(self.hidden(x)).transpose(1, 2), y, reduction="none")
        counted = (y < VOCABULARY // 2).to(losses)
        return (losses * counted).sum() / counted.sum()


class RootOfZero(Rows):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x)
        return (hidden - hidden).square().sum(-1).sqrt().mean() + hidden.square().mean()


class SharedByFarBlocks(Words):
    def __init__(self) -> None:
        super().__init__(layers=6)
        self.blocks[5].fc.weight = self.blocks[0].fc.weight


class Counter(Rows):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.hidden(x).square().mean() / self.calls


class RoutedByData(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.enter(x)
        if x[0, 0] > 0:
            hidden = hidden + self.expert(hidden)
        return self.leave(hidden).square().mean()


_SUM, _BATCH, _MEAN = ("is a sum over",), ("depends on the other samples",), ("unequal numbers",)
_SHARED, _STATE, _HANG = ("one weight in",), ("keeps state outside",), ("(a hang)",)

FAULTS = (
    Case("sum of squares", SumOfSquares, causes=_SUM),
    Case("contrastive loss", Contrastive, causes=_BATCH),
    Case("mean without padding", MeanWithoutPadding, causes=_MEAN),
    Case("root of zero", RootOfZero, causes=("NaN",)),
    Case("far blocks share a weight", SharedByFarBlocks, PIPELINE, causes=_SHARED, parameter="blocks.0.fc.weight",
         data=1),
    Case("loss divided by a counter", Counter, causes=_STATE),
    Case("layer used by some data", RoutedByData, causes=_HANG, parameter="expert."),
)  # fmt: skip


class Frozen(Words):
    def __init__(self) -> None:
        super().__init__()
        self.embed.requires_grad_(requires_grad=False)
        self.blocks[0].requires_grad_(requires_grad=False)


class Unused(Words):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(WIDTH, WIDTH)


SOUND = (
    Case("feed-forward blocks", Words),
    Case("dropout", lambda: Words(lambda: Block(0.2))),
    Case("frozen layers", Frozen),
    Case("unused layer", Unused),
)  # fmt: skip


def report(case: Case) -> tuple[bool, str]:
    """Whether nothing was found, and the problems as text."""
    try:
        done = run(read_model(case.make()), Job(sequence_length=TOKENS), case.plan, data_parallel_degree=case.data)
    except ProfileError as error:
        return False, str(error)
    return done.ok, " ".join(map(str, done.problems))


def is_found(case: Case, text: str) -> bool:
    """Whether a report names the cause of an injected fault."""
    return any(cause in text for cause in case.causes) and case.parameter in text
