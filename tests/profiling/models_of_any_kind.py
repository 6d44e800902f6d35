"""Modules that no transformers configuration describes: recurrent layers, opaque operators, nested containers."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Recurrent(nn.Module):
    def __init__(self, kind="LSTM", layers=2, width=32, **settings):
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        self.layers = getattr(nn, kind)(16, width, num_layers=layers, **settings)
        outputs = settings.get("proj_size", width) * (2 if settings.get("bidirectional") else 1)
        self.head = nn.Linear(outputs, 100)

    def forward(self, x, y):
        hidden, _ = self.layers(self.embedding(x))
        return F.cross_entropy(self.head(hidden).flatten(0, 1), y.flatten())


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


class OpaqueBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.weight = nn.Parameter(torch.randn(width, width))

    def forward(self, x):
        return x + opaque_product(self.inner(x), self.weight)


class Opaque(nn.Module):
    """Blocks whose main product is an operator of another package."""

    def __init__(self, layers=4, width=16):
        super().__init__()
        self.embedding = nn.Embedding(64, width)
        self.layers = nn.Sequential(*(OpaqueBlock(width) for _ in range(layers)))

    def forward(self, x):
        return self.layers(self.embedding(x)).float().mean()


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


class Mixed(nn.Module):
    """Computes positions in fp32, so that it fails with 16-bit parameters, but not with autocast."""

    def __init__(self, width=32):
        super().__init__()
        self.embedding = nn.Embedding(64, width)
        self.head = nn.Linear(width, 64)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], dtype=torch.float32)[:, None] / 100
        return self.head(self.embedding(tokens) + positions)


class FixedDepth(nn.Module):
    """Calls its layers by number, as often as an attribute has it."""

    def __init__(self, layers=6, width=32):
        super().__init__()
        self.depth = layers
        self.embedding = nn.Embedding(64, width)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for i in range(self.depth):
            x = x + self.layers[i](x)
        return x


class Numbered(nn.Module):
    """Blocks as numbered attributes, which the forward pass names."""

    def __init__(self, blocks=4):
        super().__init__()
        self.table = nn.Embedding(64, 32)
        self.blocks = blocks
        for i in range(blocks):
            self.add_module(
                f"block_{i}", nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
            )
        self.head = nn.Linear(32, 64)

    def forward(self, tokens):
        x = self.table(tokens)
        for i in range(self.blocks):
            x = x + getattr(self, f"block_{i}")(x)
        return self.head(x)
