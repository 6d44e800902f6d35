"""Modules as users write them in their own scripts: small language models, recurrent, vision, diffusion and others.

Each class imitates a style, not a program: configurations as dataclasses or arguments, loops over blocks or indices,
tables of positions or rotations, losses returned in tuples. `scripts/profiling_coverage.py --modules` profiles them.
"""

import math
from dataclasses import dataclass, field

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


class TiedGPT(nn.Module):
    """Everything in one ModuleDict, tied weights, logits and loss in a tuple."""

    def __init__(self, config=None):
        super().__init__()
        self.config = config = config or GPTConfig()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(config.vocab_size, config.n_embd),
            "wpe": nn.Embedding(config.block_size, config.n_embd),
            "drop": nn.Dropout(config.dropout),
            "h": nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
            "ln_f": nn.LayerNorm(config.n_embd),
        })  # fmt: skip
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        _, t = idx.size()
        assert t <= self.config.block_size, f"Cannot forward sequence of length {t}"
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(torch.arange(t, device=idx.device)))
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


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


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x) * self.weight


@dataclass
class ModelArgs:
    dim: int = 288
    n_layers: int = 6
    n_heads: int = 6
    n_kv_heads: int = 2
    vocab_size: int = 8000
    multiple_of: int = 32
    max_seq_len: int = 256


def rotated(x, cos, sin):
    first, second = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(3).type_as(x)


class LlamaLayer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.n_heads, self.n_kv_heads = args.n_heads, args.n_kv_heads
        self.head_dim = args.dim // args.n_heads
        self.wq = nn.Linear(args.dim, args.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * self.head_dim, args.dim, bias=False)
        hidden = args.multiple_of * -(-int(8 * args.dim / 3) // args.multiple_of)
        self.w1, self.w3 = nn.Linear(args.dim, hidden, bias=False), nn.Linear(args.dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, args.dim, bias=False)
        self.attention_norm, self.ffn_norm = RMSNorm(args.dim), RMSNorm(args.dim)

    def forward(self, x, freqs_cos, freqs_sin):
        bsz, seqlen, _ = x.shape
        normed = self.attention_norm(x)
        xq = rotated(self.wq(normed).view(bsz, seqlen, self.n_heads, self.head_dim), freqs_cos, freqs_sin)
        xk = rotated(self.wk(normed).view(bsz, seqlen, self.n_kv_heads, self.head_dim), freqs_cos, freqs_sin)
        xv = self.wv(normed).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        xk, xv = (part.repeat_interleave(self.n_heads // self.n_kv_heads, dim=2) for part in (xk, xv))
        out = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (xq, xk, xv)), is_causal=True)
        x = x + self.wo(out.transpose(1, 2).contiguous().view(bsz, seqlen, -1))
        normed = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(normed)) * self.w3(normed))


class SmallLlama(nn.Module):
    """Rotations in buffers, grouped keys, the loss as an attribute."""

    def __init__(self, params=None):
        super().__init__()
        self.params = params = params or ModelArgs()
        self.n_layers = params.n_layers
        self.tok_embeddings = nn.Embedding(params.vocab_size, params.dim)
        self.layers = nn.ModuleList(LlamaLayer(params) for _ in range(params.n_layers))
        self.norm = RMSNorm(params.dim)
        self.output = nn.Linear(params.dim, params.vocab_size, bias=False)
        self.tok_embeddings.weight = self.output.weight
        half = params.dim // params.n_heads // 2
        angles = torch.outer(torch.arange(params.max_seq_len).float(), 10000 ** -(torch.arange(half) / half))
        self.register_buffer("freqs_cos", angles.cos(), persistent=False)
        self.register_buffer("freqs_sin", angles.sin(), persistent=False)
        self.last_loss = None

    def forward(self, tokens, targets=None):
        seqlen = tokens.shape[1]
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h, self.freqs_cos[:seqlen], self.freqs_sin[:seqlen])
        logits = self.output(self.norm(h))
        if targets is not None:
            self.last_loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits


class ComplexRope(nn.Module):
    """Blocks by index, complex rotations in a plain attribute, `start_pos` as in inference code."""

    def __init__(self, vocab=2000, dim=256, depth=4, heads=4, max_seq_len=512):
        super().__init__()
        self.depth, self.heads = depth, heads
        self.embed = nn.Embedding(vocab, dim)
        self.norms = nn.ModuleList([RMSNorm(dim) for _ in range(depth)])
        self.qkv = nn.ModuleList([nn.Linear(dim, 3 * dim, bias=False) for _ in range(depth)])
        self.up = nn.ModuleList([nn.Linear(dim, 4 * dim) for _ in range(depth)])
        self.down = nn.ModuleList([nn.Linear(4 * dim, dim) for _ in range(depth)])
        self.head = nn.Linear(dim, vocab)
        half = dim // heads // 2
        angles = torch.outer(torch.arange(max_seq_len).float(), 10000 ** -(torch.arange(half) / half))
        self.freqs_cis = torch.polar(torch.ones_like(angles), angles)

    def forward(self, tokens, start_pos: int = 0):
        B, T = tokens.shape
        x = self.embed(tokens)
        freqs = self.freqs_cis[start_pos : start_pos + T].to(x.device)[:, None]
        mask = torch.full((T, T), float("-inf"), device=x.device).triu(1)
        for i in range(self.depth):
            q, k, v = self.qkv[i](self.norms[i](x)).view(B, T, 3, self.heads, -1).unbind(2)
            q, k = (
                torch.view_as_real(torch.view_as_complex(part.float().reshape(*part.shape[:-1], -1, 2)) * freqs)
                .flatten(3)
                .type_as(x)
                for part in (q, k)
            )
            scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1]) + mask
            x = x + torch.einsum("bhqk,bkhd->bqhd", F.softmax(scores.float(), -1).type_as(v), v).reshape(B, T, -1)
            x = x + self.down[i](F.relu(self.up[i](x)).square())
        return self.head(x)


class CharRNN(nn.Module):
    """A recurrent cell by hand, token by token, with an optional state."""

    def __init__(self, vocab_size=96, hidden_size=128):
        super().__init__()
        self.hidden_size = hidden_size
        self.embedding = nn.Embedding(vocab_size, hidden_size)
        self.i2h, self.h2h = nn.Linear(hidden_size, hidden_size), nn.Linear(hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, vocab_size)

    def forward(self, input, hidden=None):  # noqa: A002
        hidden = torch.zeros(input.size(0), self.hidden_size) if hidden is None else hidden
        outputs = []
        for t in range(input.size(1)):
            hidden = torch.tanh(self.i2h(self.embedding(input[:, t])) + self.h2h(hidden))
            outputs.append(self.h2o(hidden))
        return torch.stack(outputs, 1), hidden


class WordLSTM(nn.Module):
    """Time first, and a required state that `init_hidden` makes."""

    def __init__(self, ntoken=5000, ninp=200, nhid=200, nlayers=2, dropout=0.5):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        self.ntoken, self.nhid, self.nlayers = ntoken, nhid, nlayers

    def forward(self, input, hidden):  # noqa: A002
        output, hidden = self.rnn(self.drop(self.encoder(input)), hidden)
        decoded = self.decoder(self.drop(output)).view(-1, self.ntoken)
        return F.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return weight.new_zeros(self.nlayers, bsz, self.nhid), weight.new_zeros(self.nlayers, bsz, self.nhid)


class Translator(nn.Module):
    """Encoder and decoder with required masks."""

    def __init__(self, src_vocab=4000, tgt_vocab=4000, d_model=256, n_heads=8, n_layers=3, max_len=512):
        super().__init__()
        self.src_embed, self.tgt_embed = nn.Embedding(src_vocab, d_model), nn.Embedding(tgt_vocab, d_model)
        position, half = torch.arange(max_len)[:, None], torch.arange(0, d_model, 2)
        angles = position * torch.exp(half * (-math.log(10000.0) / d_model))
        self.register_buffer("pe", torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[None])
        encoder = nn.TransformerEncoderLayer(d_model, n_heads, 4 * d_model, batch_first=True)
        decoder = nn.TransformerDecoderLayer(d_model, n_heads, 4 * d_model, batch_first=True)
        self.encoder = nn.ModuleList(
            [encoder, *(type(encoder)(d_model, n_heads, 4 * d_model, batch_first=True) for _ in range(n_layers - 1))]
        )
        self.decoder = nn.ModuleList(
            [decoder, *(type(decoder)(d_model, n_heads, 4 * d_model, batch_first=True) for _ in range(n_layers - 1))]
        )
        self.generator = nn.Linear(d_model, tgt_vocab)

    def forward(self, src, tgt, src_mask, tgt_mask):
        memory = self.src_embed(src) + self.pe[:, : src.size(1)]
        for layer in self.encoder:
            memory = layer(memory, src_mask)
        x = self.tgt_embed(tgt) + self.pe[:, : tgt.size(1)]
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask)
        return self.generator(x)


class HandViT(nn.Module):
    """Patches by reshaping, blocks in a list of attributes' pairs, a class token."""

    def __init__(self, image=(3, 32, 32), patch=4, dim=192, depth=4, heads=3, classes=10):
        super().__init__()
        channels, height, width = image
        self.patch, tokens = patch, (height // patch) * (width // patch)
        self.project = nn.Linear(channels * patch * patch, dim)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.zeros(1, tokens + 1, dim))
        self.attention = nn.ModuleList([nn.MultiheadAttention(dim, heads, batch_first=True) for _ in range(depth)])
        self.mlp = nn.ModuleList(
            [
                nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
                for _ in range(depth)
            ]
        )
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        n, c, h, w = x.shape
        p = self.patch
        x = x.reshape(n, c, h // p, p, w // p, p).permute(0, 2, 4, 1, 3, 5).reshape(n, -1, c * p * p)
        x = torch.cat([self.cls.expand(n, -1, -1), self.project(x)], 1) + self.pos
        for attention, mlp in zip(self.attention, self.mlp, strict=True):
            x = x + attention(x, x, x, need_weights=False)[0]
            x = x + mlp(x)
        return self.head(x[:, 0])


class RoutedMLP(nn.Module):
    """Each expert runs on the tokens that its index selects."""

    def __init__(self, dim, experts, top):
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim)) for _ in range(experts)]
        )
        self.top = top

    def forward(self, x):
        flat = x.view(-1, x.shape[-1])
        weights, selected = torch.topk(self.gate(flat), self.top)
        weights = F.softmax(weights, dim=1, dtype=torch.float).to(x.dtype)
        results = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            rows, nth = torch.where(selected == i)
            results[rows] += weights[rows, nth, None] * expert(flat[rows])
        return results.view_as(x)


class MixtureGPT(nn.Module):
    """A language model with routed experts, whose shapes depend on values."""

    def __init__(self, vocab_size=2000, dim=128, depth=4, heads=4, experts=8, top=2):
        super().__init__()
        config = GPTConfig(vocab_size=vocab_size, n_embd=dim, n_head=heads, n_layer=depth)
        self.embed = nn.Embedding(vocab_size, dim)
        self.attention = nn.ModuleList([CausalSelfAttention(config) for _ in range(depth)])
        self.moe = nn.ModuleList([RoutedMLP(dim, experts, top) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab_size)

    def forward(self, input_ids, labels=None):
        x = self.embed(input_ids)
        for attention, moe in zip(self.attention, self.moe, strict=True):
            x = x + attention(x)
            x = x + moe(x)
        logits = self.head(self.norm(x))
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class SwitchGPT(nn.Module):
    """Experts as products of three dimensions, with a capacity, and an auxiliary loss in the output."""

    def __init__(self, vocab_size=2000, dim=128, depth=4, experts=8):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.router = nn.ModuleList([nn.Linear(dim, experts) for _ in range(depth)])
        self.w_in = nn.ParameterList([nn.Parameter(torch.randn(experts, dim, 4 * dim) * 0.02) for _ in range(depth)])
        self.w_out = nn.ParameterList([nn.Parameter(torch.randn(experts, 4 * dim, dim) * 0.02) for _ in range(depth)])
        self.head = nn.Linear(dim, vocab_size)

    def forward(self, tokens):
        x, auxiliary = self.embed(tokens), 0.0
        for router, w_in, w_out in zip(self.router, self.w_in, self.w_out, strict=True):
            probabilities = router(x).softmax(-1)
            gate, index = probabilities.max(-1)
            dispatch = F.one_hot(index, probabilities.shape[-1]).type_as(x)
            auxiliary = auxiliary + (dispatch.mean((0, 1)) * probabilities.mean((0, 1))).sum()
            hidden = F.relu(torch.einsum("bte,btd,edf->btf", dispatch, x, w_in))
            x = x + gate[..., None] * torch.einsum("bte,btf,efd->btd", dispatch, hidden, w_out)
        return self.head(x), auxiliary


class ResidualBlock(nn.Module):
    def __init__(self, in_channels, out_channels, time_dim):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, in_channels), nn.GroupNorm(8, out_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.time = nn.Linear(time_dim, out_channels)
        self.skip = nn.Conv2d(in_channels, out_channels, 1) if in_channels != out_channels else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(emb))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class DenoisingUNet(nn.Module):
    """A diffusion model that is called with noisy images and times."""

    def __init__(self, in_ch=3, base=64, mults=(1, 2, 2), size=32):
        super().__init__()
        self.base, self.image_size, time_dim = base, size, 4 * base
        self.time_mlp = nn.Sequential(nn.Linear(base, time_dim), nn.SiLU(), nn.Linear(time_dim, time_dim))
        self.stem = nn.Conv2d(in_ch, base, 3, padding=1)
        widths = [base * m for m in mults]
        self.downs = nn.ModuleList(
            [ResidualBlock(a, b, time_dim) for a, b in zip([base, *widths[:-1]], widths, strict=True)]
        )
        self.mid = ResidualBlock(widths[-1], widths[-1], time_dim)
        self.ups = nn.ModuleList(
            [ResidualBlock(2 * b, a, time_dim) for a, b in zip([base, *widths[:-1]], widths, strict=True)][::-1]
        )
        self.out = nn.Conv2d(base, in_ch, 3, padding=1)

    def forward(self, x, t):
        half = self.base // 2
        freqs = torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
        angles = t[:, None].float() * freqs[None]
        emb = self.time_mlp(torch.cat([angles.sin(), angles.cos()], -1).to(x.dtype))
        x, skips = self.stem(x), []
        for down in self.downs:
            x = down(x, emb)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.mid(x, emb)
        for up in self.ups:
            x = up(torch.cat([F.interpolate(x, scale_factor=2), skips.pop()], 1), emb)
        return self.out(x)


class DiffusionLoss(nn.Module):
    """The training wrapper: draws times and noise, and returns the loss."""

    def __init__(self, steps=1000, size=32):
        super().__init__()
        self.model, self.steps = DenoisingUNet(size=size), steps
        self.register_buffer("alphas", torch.cumprod(1 - torch.linspace(1e-4, 0.02, steps), 0))

    def forward(self, x0):
        t = torch.randint(0, self.steps, (x0.shape[0],), device=x0.device)
        noise, a = torch.randn_like(x0), self.alphas[t].view(-1, 1, 1, 1).to(x0.dtype)
        return F.mse_loss(self.model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t), noise)


class VAE(nn.Module):
    """Fully connected, flattens its images, returns a tuple of three."""

    def __init__(self, hidden=400, latent=20):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(784, hidden), nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.fc3, self.fc4 = nn.Linear(latent, hidden), nn.Linear(hidden, 784)

    def forward(self, x):
        h1 = F.relu(self.fc1(x.view(-1, 784)))
        mu, logvar = self.fc21(h1), self.fc22(h1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


class CifarNet(nn.Module):
    """A convolutional network with a fixed size of images behind its linear layers."""

    def __init__(self, num_classes=10):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 5), nn.Conv2d(32, 64, 5)
        self.bn1, self.bn2, self.pool = nn.BatchNorm2d(32), nn.BatchNorm2d(64), nn.MaxPool2d(2, 2)
        self.fc1, self.fc2 = nn.Linear(64 * 5 * 5, 120), nn.Linear(120, num_classes)

    def forward(self, x):
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        x = self.pool(F.relu(self.bn2(self.conv2(x))))
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


class ClickModel(nn.Module):
    """Recommendation: numbers, and a table of categories with a column per feature."""

    def __init__(self, num_dense=13, cardinalities=(1000, 500, 200, 100, 50), dim=32):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(num_dense, 128), nn.ReLU(), nn.Linear(128, dim))
        self.embeddings = nn.ModuleList([nn.Embedding(rows, dim) for rows in cardinalities])
        features = len(cardinalities) + 1
        self.top = nn.Sequential(nn.Linear(dim + features * (features - 1) // 2, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, dense_features, sparse_features):
        dense = self.bottom(dense_features)
        sparse = [table(sparse_features[:, i]) for i, table in enumerate(self.embeddings)]
        stacked = torch.stack([dense, *sparse], 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        rows, columns = torch.tril_indices(stacked.shape[1], stacked.shape[1], -1)
        return self.top(torch.cat([dense, products[:, rows, columns]], 1)).squeeze(-1)


class TwoTowers(nn.Module):
    """Users and items by their ids."""

    def __init__(self, num_users=5000, num_items=2000, dim=64):
        super().__init__()
        self.user_embedding, self.item_embedding = nn.Embedding(num_users, dim), nn.Embedding(num_items, dim)
        self.mlp = nn.Sequential(nn.Linear(2 * dim, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, user_ids, item_ids):
        return self.mlp(torch.cat([self.user_embedding(user_ids), self.item_embedding(item_ids)], -1)).squeeze(-1)


class ContrastivePair(nn.Module):
    """Images with text, compared within the batch."""

    def __init__(self, vocab=5000, dim=128, context_length=32):
        super().__init__()
        self.visual = nn.Sequential(
            nn.Conv2d(3, 64, 4, 4), nn.ReLU(), nn.Conv2d(64, dim, 4, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.token_embedding = nn.Embedding(vocab, dim)
        self.positional_embedding = nn.Parameter(torch.randn(context_length, dim) * 0.01)
        self.text = nn.TransformerEncoder(nn.TransformerEncoderLayer(dim, 4, 4 * dim, batch_first=True), 3)
        self.logit_scale = nn.Parameter(torch.tensor(2.6))
        self.context_length = context_length

    def forward(self, image, text):
        images = F.normalize(self.visual(image), dim=-1)
        tokens = self.token_embedding(text) + self.positional_embedding[: text.shape[1]]
        texts = F.normalize(self.text(tokens).mean(1), dim=-1)
        logits = self.logit_scale.exp() * images @ texts.t()
        labels = torch.arange(len(logits), device=logits.device)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


class Forecaster(nn.Module):
    """Numbers of a sequence to the next ones, by a recurrent layer."""

    def __init__(self, n_features=8, hidden=64, horizon=12):
        super().__init__()
        self.lstm = nn.LSTM(n_features, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, horizon)

    def forward(self, x):
        _, (h, _) = self.lstm(x)
        return self.head(h[-1])


class PointCloudNet(nn.Module):
    """Points as channels, shared layers, a maximum over the points."""

    def __init__(self, classes=40):
        super().__init__()
        widths = (3, 64, 128, 512)
        self.mlp = nn.Sequential(
            *[nn.Sequential(nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU()) for a, b in zip(widths, widths[1:])]  # noqa: B905, RUF007
        )
        self.head = nn.Linear(512, classes)

    def forward(self, points):
        return self.head(self.mlp(points).max(-1).values)


class DenseGCN(nn.Module):
    """A graph as a dense matrix."""

    def __init__(self, nfeat=64, nhid=128, nclass=7, layers=3):
        super().__init__()
        sizes = [nfeat, *[nhid] * (layers - 1), nclass]
        self.weights = nn.ParameterList(
            [nn.Parameter(torch.randn(a, b) / math.sqrt(a)) for a, b in zip(sizes, sizes[1:])]  # noqa: B905, RUF007
        )

    def forward(self, x, adj):
        for weight in self.weights[:-1]:
            x = F.relu(adj @ (x @ weight))
        return F.log_softmax(adj @ (x @ self.weights[-1]), dim=-1)


class SelectiveScan(nn.Module):
    """A state-space model with a loop over the sequence."""

    def __init__(self, vocab=1000, dim=96, state=8, depth=2):
        super().__init__()
        self.embed, self.state = nn.Embedding(vocab, dim), state
        self.convs = nn.ModuleList([nn.Conv1d(dim, dim, 4, groups=dim, padding=3) for _ in range(depth)])
        self.params = nn.ModuleList([nn.Linear(dim, dim + 2 * state) for _ in range(depth)])
        self.A_log = nn.ParameterList([nn.Parameter(torch.rand(dim, state).log()) for _ in range(depth)])
        self.out = nn.ModuleList([nn.Linear(dim, dim) for _ in range(depth)])
        self.head = nn.Linear(dim, vocab)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for conv, params, a_log, out in zip(self.convs, self.params, self.A_log, self.out, strict=True):
            u = F.silu(conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
            delta, B, C = params(u).split([u.shape[-1], self.state, self.state], -1)
            delta, A = F.softplus(delta), -a_log.exp()
            h, ys = u.new_zeros(*u.shape[::2], self.state), []
            for t in range(u.shape[1]):
                step = delta[:, t, :, None]
                h = torch.exp(step * A) * h + step * B[:, t, None] * u[:, t, :, None]
                ys.append((h * C[:, t, None]).sum(-1))
            x = x + out(torch.stack(ys, 1))
        return self.head(x)


@dataclass
class SpeechConfig:
    n_mels: int = 80
    dim: int = 144
    layers: int = 4
    classes: int = 29
    kernel_sizes: list[int] = field(default_factory=lambda: [11, 13, 15, 17])


class SpeechCTC(nn.Module):
    """Frames of a spectrogram with their lengths, for a CTC loss."""

    def __init__(self, cfg=None):
        super().__init__()
        cfg = cfg or SpeechConfig()
        self.stem = nn.Conv1d(cfg.n_mels, cfg.dim, 3, stride=2, padding=1)
        self.convs = nn.ModuleList([nn.Conv1d(cfg.dim, cfg.dim, k, padding=k // 2) for k in cfg.kernel_sizes])
        self.rnn = nn.GRU(cfg.dim, cfg.dim, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * cfg.dim, cfg.classes)

    def forward(self, spectrogram, lengths):
        x = self.stem(spectrogram)
        for conv in self.convs:
            x = x + F.relu(conv(x))
        x, _ = self.rnn(x.transpose(1, 2))
        return self.fc(x).log_softmax(-1), torch.div(lengths + 1, 2, rounding_mode="floor")
