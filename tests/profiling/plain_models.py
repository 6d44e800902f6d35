"""Models that are not from transformers, as users write them."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        batch, tokens, width = x.shape
        shape = (batch, tokens, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.ln1(x)).split(width, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.proj(attended.transpose(1, 2).reshape(batch, tokens, width)))
        return x + self.drop(self.out(F.gelu(self.fc(self.ln2(x)))))


class PlainGPT(nn.Module):
    def __init__(self, layers=4, width=64, heads=4, vocab=128, positions=512):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(positions, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, x, y):
        hidden = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        return F.cross_entropy(self.head(self.ln(self.blocks(hidden))).flatten(0, 1), y.flatten())


class PlainGPTOfOneSize(PlainGPT):
    """A model that its constructor builds in one size, whose width is prime."""

    def __init__(self):
        super().__init__(layers=6, width=1531, heads=1, vocab=8192)


class Bottleneck(nn.Module):
    def __init__(self, inputs, middle, stride=1):
        super().__init__()
        outputs = 4 * middle
        self.c1, self.b1 = nn.Conv2d(inputs, middle, 1, bias=False), nn.BatchNorm2d(middle)
        self.c2, self.b2 = nn.Conv2d(middle, middle, 3, stride, 1, bias=False), nn.BatchNorm2d(middle)
        self.c3, self.b3 = nn.Conv2d(middle, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.down = None
        if stride != 1 or inputs != outputs:
            self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        shortcut = x if self.down is None else self.down(x)
        x = F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))))
        return F.relu(self.b3(self.c3(x)) + shortcut)


class ResNet(nn.Module):
    def __init__(self, layers=(3, 8, 36, 3)):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        inputs, stages = 64, []
        for stage, (count, middle) in enumerate(zip(layers, (64, 128, 256, 512), strict=True)):
            blocks = []
            for place in range(count):
                blocks.append(Bottleneck(inputs, middle, 2 if stage and not place else 1))
                inputs = 4 * middle
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(2048, 1000)

    def forward(self, x, y):
        return F.cross_entropy(self.fc(self.stages(self.stem(x)).mean((2, 3))), y)


class Scan(nn.Module):
    """A state-space block without its fused kernel: a loop over the tokens."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x):
        state, states = torch.zeros_like(x[:, 0]), []
        for token in self.mix(x).unbind(1):
            state = torch.tanh(state + token)
            states.append(state)
        return x + torch.stack(states, 1)


class Scanning(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(Scan() for _ in range(layers))

    def forward(self, x):
        hidden = self.embedding(x)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden.float().mean()
