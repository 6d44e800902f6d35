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
