# plan: {"pipeline_parallel_degree": 4, "microbatches": 8, "auto_partition": false, "default_partition": 0}
"""An encoder and decoder placed by hand: tied tensors together, a mask that every microbatch gets whole."""
import functools

import smdistributed.modelparallel.torch as smp
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import AdamW
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler


class Seq2Seq(nn.Module):
    def __init__(self, vocabulary, width=512, depth=6):
        super().__init__()
        with smp.partition(0):
            self.source = nn.Embedding(vocabulary, width)
            self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(width, 8, batch_first=True) for _ in range(depth))
        with smp.partition(1):
            self.target = nn.Embedding(vocabulary, width)
            self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(width, 8, batch_first=True) for _ in range(depth))
            self.output = nn.Linear(width, vocabulary, bias=False)
            self.output.weight = self.target.weight

    def forward(self, source, target, mask):
        memory = self.source(source)
        for layer in self.encoder:
            memory = layer(memory)
        hidden = self.target(target)
        for layer in self.decoder:
            hidden = layer(hidden, memory, tgt_mask=mask)
        return self.output(hidden)


class Pairs(torch.utils.data.Dataset):
    def __init__(self, path):
        super().__init__()
        self.pairs = torch.load(path)

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


def collate(pairs, pad):
    sources, targets = zip(*pairs)
    stack = functools.partial(nn.utils.rnn.pad_sequence, batch_first=True, padding_value=pad)
    return stack(sources), stack(targets)


@smp.step(non_split_inputs=["mask", "smoothing"])
def train_step(model, source, target, mask, smoothing=0.1):
    logits = model(source, target[:, :-1], mask)
    loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), label_smoothing=smoothing)
    model.backward(loss)
    return {"loss": loss, "tokens": target.numel()}


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def add(self, value):
        self.total += float(value)
        self.count += 1

    def mean(self):
        return self.total / max(self.count, 1)


def run(epochs):
    pairs = Pairs("/opt/ml/input/data/train/pairs.pt")
    sampler = DistributedSampler(pairs, smp.dp_size(), smp.dp_rank(), shuffle=True)
    batches = BatchSampler(sampler, batch_size=64, drop_last=True)
    loader = DataLoader(pairs, batch_sampler=batches, collate_fn=functools.partial(collate, pad=0))
    model = smp.DistributedModel(Seq2Seq(32000))
    optimizer = smp.DistributedOptimizer(AdamW(model.parameters(), lr=5e-4))
    meter = Meter()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for source, target in loader:
            length = target.shape[1] - 1
            mask = torch.triu(torch.full((length, length), float("-inf")), diagonal=1).cuda()
            optimizer.zero_grad()
            outputs = train_step(model, source.cuda(), target.cuda(), mask)
            torch.nn.utils.clip_grad_norm_(model.local_parameters(), 1.0)
            optimizer.step()
            meter.add(outputs["loss"].reduce_mean().item())
        if smp.rank() == 0:
            print(f"{epoch}: {meter.mean():.3f}")


def main():
    smp.init()
    torch.cuda.set_device(smp.local_rank())
    torch.manual_seed(3 + smp.dp_rank())
    run(epochs=3)


if __name__ == "__main__":
    main()
