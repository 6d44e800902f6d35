"""A small language model as users write it in their own scripts."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


@dataclass
class GPTConfig:
    block_size: int = 256
    vocab_size: int = 4096
    n_layer: int = 6
    n_head: int = 6
    n_embd: int = 384
    dropout: float = 0.1


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.n_head, self.n_embd, self.dropout = config.n_head, config.n_embd, config.dropout

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self, config, attention=CausalSelfAttention):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.attn = attention(config)
        self.mlp = nn.ModuleDict({
            "c_fc": nn.Linear(config.n_embd, 4 * config.n_embd),
            "c_proj": nn.Linear(4 * config.n_embd, config.n_embd),
        })  # fmt: skip

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x))))


class MaskedSelfAttention(nn.Module):
    """Attention with its own mask in a buffer of block_size x block_size."""

    def __init__(self, config):
        super().__init__()
        self.key, self.query, self.value, self.proj = (nn.Linear(config.n_embd, config.n_embd) for _ in range(4))
        mask = torch.tril(torch.ones(config.block_size, config.block_size))
        self.register_buffer("mask", mask.view(1, 1, config.block_size, config.block_size))
        self.n_head = config.n_head

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (
            part(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = F.softmax(att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf")), dim=-1)
        return self.proj((att @ v).transpose(1, 2).contiguous().view(B, T, C))


class MinimalGPT(nn.Module):
    """Positions in a parameter, blocks in a Sequential, only logits returned."""

    def __init__(self, config=None):
        super().__init__()
        config = config or GPTConfig()
        self.tok_emb = nn.Embedding(config.vocab_size, config.n_embd)
        self.pos_emb = nn.Parameter(torch.zeros(1, config.block_size, config.n_embd))
        self.blocks = nn.Sequential(*[Block(config, MaskedSelfAttention) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.block_size = config.block_size

    def forward(self, idx):
        _, t = idx.size()
        assert t <= self.block_size, "Cannot forward, model block size is exhausted."
        return self.head(self.ln_f(self.blocks(self.tok_emb(idx) + self.pos_emb[:, :t, :])))
