"""Count the faults that the division of a batch shows, and its false alarms on sound models.

Run it with ``python -m benchmarks.divided_models``. A fault counts as found if a problem contains its cause, and its
parameter where there is one. It fails if a fault is missed, or with a false alarm.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
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
DDP_CHECKPOINTED = Plan(library="ddp", batch_size=4, gradient_accumulation_steps=2, activation_checkpointing="each")
FSDP = Plan(library="fsdp", batch_size=4)
FSDP_CHECKPOINTED = Plan(library="fsdp", batch_size=4, activation_checkpointing="each")
PIPELINE = Plan(pipeline_parallel_degree=2, microbatches=4, batch_size=8)
TENSOR = Plan(tensor_parallel_degree=2, batch_size=4)


@dataclass(frozen=True)
class Case:
    """A model to divide; `causes` are phrases of which the report of a fault must contain one."""

    name: str
    make: Callable[[], Any]
    plan: Any = DDP
    causes: tuple[str, ...] = ()
    parameter: str = ""
    """Name that the report must contain."""
    inputs: Any = None
    data: int = 2
    tags: frozenset[str] = field(default=frozenset())


class Block(nn.Module):
    """A feed-forward block with a residual connection."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.fc, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.out(F.gelu(self.fc(self.norm(x)))))


class Attention(nn.Module):
    """A block of causal attention with dropout on the weights and the output."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm, self.qkv, self.proj = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(x)).split(WIDTH, -1)
        scores = query @ key.transpose(-1, -2) / WIDTH**0.5
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = F.dropout(scores.masked_fill(mask, float("-inf")).softmax(-1), self.dropout, self.training)
        return x + F.dropout(self.proj(weights @ value), self.dropout, self.training)


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


# Faults of losses


class SumOfTokens(Words):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.hidden(x)).flatten(0, 1), y.flatten(), reduction="sum")


class SumOfSquares(Rows):
    def forward(self, x: Tensor) -> Tensor:
        return (self.hidden(x) - 1).square().sum()


class SumOfSamples(Words):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        losses = F.cross_entropy(self.head(self.hidden(x)).transpose(1, 2), y, reduction="none")
        return losses.mean(1).sum()


class Contrastive(Rows):
    def forward(self, x: Tensor) -> Tensor:
        first, second = F.normalize(self.hidden(x), dim=-1), F.normalize(self.hidden(x * 1.1 + 0.2), dim=-1)
        return F.cross_entropy(first @ second.T / 0.1, torch.arange(x.shape[0]))


class Triplets(Rows):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x)
        return F.relu(1 + (hidden - hidden.roll(1, 0)).square().sum(-1)).mean()


class Correlation(Rows):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x)
        centered = hidden - hidden.mean(0)
        return (centered.T @ centered / x.shape[0]).square().mean()


class BatchScale(Rows):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x)
        return (hidden / (hidden.detach().std() + 0.1) - x[:, :6]).square().mean()


class HardestSamples(Words):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        losses = F.cross_entropy(self.head(self.hidden(x)).transpose(1, 2), y, reduction="none").mean(1)
        return losses.topk(max(1, len(losses) // 2)).values.mean()


class MeanWithoutPadding(Words):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        losses = F.cross_entropy(self.head(self.hidden(x)).transpose(1, 2), y, reduction="none")
        counted = (y < VOCABULARY // 2).to(losses)
        return (losses * counted).sum() / counted.sum()


class ClassWeights(Rows):
    def forward(self, x: Tensor) -> Tensor:
        classes = (x[:, 0] > 0).long()
        return F.cross_entropy(self.hidden(x)[:, :2], classes, weight=torch.tensor([1.0, 9.0]))


class PositivesOnly(Rows):
    def forward(self, x: Tensor) -> Tensor:
        positive = (x[:, 0] > -2.0).float() * (1 + (x[:, 1] > 0))
        return (self.hidden(x).square().mean(-1) * positive).sum() / positive.sum()


# Faults of numbers


class RootOfZero(Rows):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x)
        return (hidden - hidden).square().sum(-1).sqrt().mean() + hidden.square().mean()


class LogOfNegative(Rows):
    def forward(self, x: Tensor) -> Tensor:
        return -torch.log(self.hidden(x)).mean()


class MaskedOut(Words):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.head(self.hidden(x)).masked_fill(torch.ones(VOCABULARY, dtype=torch.bool), float("-inf"))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


class Overflow(Rows):
    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(self.hidden(x).square() * 1e4 + 100).mean()


# Faults of weights and state


class SharedByFarBlocks(Words):
    def __init__(self) -> None:
        super().__init__(layers=6)
        self.blocks[5].fc.weight = self.blocks[0].fc.weight


class SharedNorms(Words):
    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.norm = self.blocks[0].norm


class SharedEnds(Words):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[3].out = self.blocks[0].out


class Counter(Rows):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.hidden(x).square().mean() / self.calls


class Memory(Rows):
    previous: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x)
        loss = (hidden - self.previous).square().mean()
        self.previous = hidden.detach().mean() + 1
        return loss


class Alternating(Block):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) if self.calls % 2 else super().forward(x).tanh()


class SingleSampleStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm, self.leave = nn.Linear(12, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.norm(self.enter(x))).square().mean()


# Faults of data


class RoutedByData(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.enter(x)
        if x[0, 0] > 0:
            hidden = hidden + self.expert(hidden)
        return self.leave(hidden).square().mean()


class SkipsBlocksByData(Words):
    def hidden(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.embed(x)
        for number, block in enumerate(self.blocks):
            if number != 2 or x[0, 0] < VOCABULARY // 2:
                hidden = block(hidden)
        return hidden


class HeadByData(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(WIDTH, 6)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.enter(x)
        for block in self.blocks:
            hidden = block(hidden)
        return (self.leave if x.sum() > 0 else self.other)(hidden).square().mean()


def _ignored_labels(batch: int, sequence: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, VOCABULARY, (batch, sequence), generator=generator)
    labels = tokens.clone()
    for row in range(batch):
        labels[row, 1 + row % sequence :] = -100
    return {"x": tokens, "y": labels}


_SUM, _BATCH, _MEAN = ("is a sum over",), ("depends on the other samples",), ("unequal numbers",)
_SHARED, _STATE, _HANG = ("one weight in",), ("keeps state outside",), ("(a hang)",)

FAULTS = (
    Case("sum over tokens", SumOfTokens, causes=_SUM),
    Case("sum of squares", SumOfSquares, causes=_SUM, tags=frozenset({"fast"})),
    Case("sum over samples, sharded", SumOfSamples, FSDP, causes=_SUM),
    Case("sum over tokens, pipeline", SumOfTokens, PIPELINE, causes=_SUM, data=1),
    Case("contrastive loss", Contrastive, causes=_BATCH, tags=frozenset({"fast"})),
    Case("distances between samples", Triplets, causes=_BATCH),
    Case("correlation of the batch", Correlation, FSDP, causes=_BATCH),
    Case("scale of the batch", BatchScale, causes=_BATCH),
    Case("hardest samples of the batch", HardestSamples, PIPELINE, causes=_BATCH, data=1),
    Case("mean without padding", MeanWithoutPadding, causes=_MEAN, tags=frozenset({"fast"})),
    Case("mean with ignored labels", Words, causes=_MEAN, inputs=_ignored_labels),
    Case("mean with class weights", ClassWeights, causes=_MEAN),
    Case("mean over positives, pipeline", PositivesOnly, PIPELINE, causes=_MEAN, data=1),
    Case("root of zero", RootOfZero, causes=("NaN",), tags=frozenset({"fast"})),
    Case("logarithm of negative numbers", LogOfNegative, causes=("NaN",)),
    Case("every logit masked", MaskedOut, causes=("NaN",)),
    Case("overflow", Overflow, causes=("is infinite",)),
    Case("far blocks share a weight", SharedByFarBlocks, PIPELINE, causes=_SHARED, parameter="blocks.0.fc.weight",
         data=1, tags=frozenset({"fast"})),
    Case("all blocks share a norm", SharedNorms, PIPELINE, causes=_SHARED, parameter="blocks.0.norm.weight"),
    Case("first and last block share a layer", SharedEnds, PIPELINE, causes=_SHARED, parameter="blocks.0.out.weight"),
    Case("loss divided by a counter", Counter, causes=_STATE),
    Case("state of the previous batch", Memory, FSDP, causes=_STATE),
    Case("block differs when recomputed", lambda: Words(Alternating, layers=3), DDP_CHECKPOINTED,
         causes=(*_STATE, "CheckpointError", "checkpoint")),
    Case("batch norm on one sample", SingleSampleStatistics, Plan(library="ddp", batch_size=1),
         causes=("more than 1 value",)),
    Case("layer used by some data", RoutedByData, causes=_HANG, parameter="expert."),
    Case("block skipped by some data, sharded", SkipsBlocksByData, FSDP, causes=_HANG, parameter="blocks.2"),
)  # fmt: skip


# Sound models


class Tied(Words):
    def __init__(self, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__(block)
        self.head.weight = self.embed.weight


class Frozen(Words):
    def __init__(self) -> None:
        super().__init__()
        self.embed.requires_grad_(requires_grad=False)
        self.blocks[0].requires_grad_(requires_grad=False)


class Unused(Words):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(WIDTH, WIDTH)


class Noise(Words):
    def hidden(self, x: Tensor) -> Tensor:
        hidden = super().hidden(x)
        return hidden + 0.1 * torch.randn_like(hidden) if self.training else hidden


class LowRank(Rows):
    def __init__(self) -> None:
        super().__init__()
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(12, 2, bias=False), nn.Linear(2, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.hidden(x) + self.up(self.down(x)) - 1).square().mean()


class Convolutions(nn.Module):
    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem = nn.Conv1d(4, 8, 3, padding=1)
        self.stages = nn.ModuleList(nn.Sequential(nn.Conv1d(8, 8, 3, padding=1), norm(), nn.ReLU()) for _ in range(3))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.stem(x)
        for stage in self.stages:
            hidden = hidden + stage(hidden)
        return F.cross_entropy(self.head(hidden.mean(-1)), torch.zeros(x.shape[0], dtype=torch.long))


class Recurrent(Words):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def hidden(self, x: Tensor) -> Tensor:
        output: Tensor = self.rnn(super().hidden(x))[0]
        return output


class Experts(Block):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        return x + sum(weights[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


class Logits(Words):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.head(self.hidden(x))


class Buffered(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return self.hidden(x).square().mean()


class Detached(Rows):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x)
        return (hidden - hidden.detach().roll(1, -1)).square().mean()


class Kernel(Block):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x).split(WIDTH, -1))
        rate = 0.1 if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True)
        return x + attended.transpose(1, 2).flatten(2)


class SharedWithinStage(Words):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[1].fc.weight = self.blocks[0].fc.weight


def _transformers(kind: str, **settings: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"model_type": kind, **settings}


_GPT2 = {"n_embd": 32, "n_layer": 4, "n_head": 2, "vocab_size": 100}
_LLAMA = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 2,
    "intermediate_size": 64, "vocab_size": 100,
}  # fmt: skip
_BERT = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 100,
}  # fmt: skip


def _images(batch: int, _: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 4, 10, generator=torch.Generator().manual_seed(2)),)


SOUND = (
    Case("feed-forward blocks", Words, tags=frozenset({"fast"})),
    Case("feed-forward blocks, sharded", Words, FSDP),
    Case("feed-forward blocks, pipeline", Words, PIPELINE),
    Case("feed-forward blocks, tensor parallelism", Words, TENSOR, data=1),
    Case("feed-forward blocks, recomputed", Words, DDP_CHECKPOINTED),
    Case("dropout", lambda: Words(lambda: Block(0.2)), tags=frozenset({"fast"})),
    Case("dropout, recomputed and sharded", lambda: Words(lambda: Block(0.2)), FSDP_CHECKPOINTED),
    Case("dropout, pipeline", lambda: Words(lambda: Block(0.2)), PIPELINE),
    Case("attention with dropout", lambda: Words(Attention)),
    Case("attention with dropout, pipeline", lambda: Words(Attention), PIPELINE),
    Case("attention kernel with dropout", lambda: Words(Kernel)),
    Case("tied head", Tied),
    Case("tied head, pipeline", Tied, PIPELINE),
    Case("tied head, sharded", lambda: Tied(Attention), FSDP),
    Case("frozen layers", Frozen, tags=frozenset({"fast"})),
    Case("frozen layers, pipeline", Frozen, PIPELINE),
    Case("frozen layers, sharded", Frozen, FSDP),
    Case("unused layer", Unused, tags=frozenset({"fast"})),
    Case("unused layer, pipeline", Unused, PIPELINE),
    Case("low-rank adapter", LowRank),
    Case("own noise", Noise),
    Case("convolutions with batch norm", lambda: Convolutions(lambda: nn.BatchNorm1d(8)), inputs=_images),
    Case("convolutions with group norm", lambda: Convolutions(lambda: nn.GroupNorm(2, 8)), inputs=_images),
    Case("recurrent layer", Recurrent),
    Case("mixture of experts", lambda: Words(Experts), FSDP),
    Case("no loss, only logits", Logits),
    Case("counting buffer", Buffered),
    Case("detached target", Detached),
    Case("GPT-2", _transformers("gpt2", **_GPT2), PIPELINE),
    Case("Llama, sharded", _transformers("llama", **_LLAMA), FSDP_CHECKPOINTED),
)  # fmt: skip


def report(case: Case) -> tuple[bool, str]:
    """Whether nothing was found, and the problems as text."""
    try:
        done = run(
            read_model(case.make()), Job(sequence_length=TOKENS), case.plan, data_parallel_degree=case.data,
            inputs=case.inputs,
        )  # fmt: skip
    except ProfileError as error:
        return False, str(error)
    return done.ok, " ".join(map(str, done.problems))


def is_found(case: Case, text: str) -> bool:
    """Whether a report names the cause of an injected fault."""
    return any(cause in text for cause in case.causes) and case.parameter in text


def main() -> int:
    """Check all cases."""
    results = [(case, *report(case)) for case in (*FAULTS, *SOUND)]
    wrong = [case.name for case, ok, text in results if ok == bool(case.causes) or not (ok or is_found(case, text))]
    print(f"{len(FAULTS)} faults and {len(SOUND)} sound models; wrong: {', '.join(wrong) or 'none'}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
