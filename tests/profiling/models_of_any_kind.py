"""Modules that no transformers configuration describes: recurrent layers, opaque operators, nested containers."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.profiling.shared import net


def recurrent(kind, outputs, **settings):
    def forward(self, x, y):
        hidden, _ = self.layers(self.embedding(x))
        return F.cross_entropy(self.head(hidden).flatten(0, 1), y.flatten())

    layers = getattr(nn, kind)(16, 32, num_layers=2, **settings)
    return net(forward, embedding=nn.Embedding(100, 16), layers=layers, head=nn.Linear(outputs, 100))


@torch.library.custom_op("smp_advisor_tests::opaque_product", mutates_args=())
def opaque_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight


opaque_product.register_fake(lambda x, weight: x @ weight)
opaque_product.register_autograd(
    lambda ctx, gradient: (
        gradient @ ctx.saved_tensors[1].T,
        ctx.saved_tensors[0].flatten(0, 1).T @ gradient.flatten(0, 1),
    ),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),  # noqa: ARG005
)


def opaque():
    """Blocks whose main product is an operator of another package."""

    def block(self, x):
        return x + opaque_product(self.inner(x), self.weight)

    blocks = (net(block, inner=nn.Linear(16, 16), weight=nn.Parameter(torch.randn(16, 16))) for _ in range(4))
    return net(
        lambda self, x: self.layers(self.embedding(x)).float().mean(),
        embedding=nn.Embedding(64, 16), layers=nn.Sequential(*blocks),
    )  # fmt: skip


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.to_qkv, self.to_out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.to_qkv(self.norm(x)).chunk(3, -1)
        )
        scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
        return self.to_out((scores @ v).transpose(1, 2).flatten(2))


class FeedForward(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class NestedViT(nn.Module):
    """Layers as lists of an attention and a feed-forward part, as many libraries write them."""

    def __init__(self, depth=6, width=64, heads=4, image=32, patch=8):
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(torch.randn((image // patch) ** 2, width))
        self.layers = nn.ModuleList(nn.ModuleList([Attention(width, heads), FeedForward(width)]) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, image):
        x = self.patch(image).flatten(2).transpose(1, 2) + self.positions
        for attention, feed_forward in self.layers:
            x = attention(x) + x
            x = feed_forward(x) + x
        return self.head(x.mean(1))


class JoinedViT(NestedViT):
    """The same layers as modules with a forward method."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.layers = nn.ModuleList(Joined(*layer) for layer in self.layers)

    def forward(self, image):
        x = self.patch(image).flatten(2).transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class Joined(nn.Module):
    def __init__(self, attention, feed_forward):
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward

    def forward(self, x):
        x = self.attention(x) + x
        return self.feed_forward(x) + x


class Unused(NestedViT):
    """Registered layers that never run as such: only their parts' weights are used."""

    def forward(self, image):
        x = self.patch(image).flatten(2).transpose(1, 2) + self.positions
        for attention, _ in self.layers:
            x = x + F.linear(x, attention.to_out.weight)
        return self.head(x.mean(1))


def mixed():
    """Computes positions in fp32, so that it fails with 16-bit parameters, but not with autocast."""

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], dtype=torch.float32)[:, None] / 100
        return self.head(self.embedding(tokens) + positions)

    return net(forward, embedding=nn.Embedding(64, 32), head=nn.Linear(32, 64))


def fixed_depth():
    """Calls its layers by number, as often as an attribute has it."""

    def forward(self, tokens):
        x = self.embedding(tokens)
        for i in range(self.depth):
            x = x + self.layers[i](x)
        return x

    layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(6))
    return net(forward, depth=6, embedding=nn.Embedding(64, 32), layers=layers)


def numbered():
    """Blocks as numbered attributes, which the forward pass names."""

    def forward(self, tokens):
        x = self.table(tokens)
        for i in range(4):
            x = x + getattr(self, f"block_{i}")(x)
        return self.head(x)

    blocks = (nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(4))
    named = {f"block_{i}": block for i, block in enumerate(blocks)}
    return net(forward, table=nn.Embedding(64, 32), **named, head=nn.Linear(32, 64))
