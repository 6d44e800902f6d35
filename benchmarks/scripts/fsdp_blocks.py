"""FSDP with a policy for blocks, bfloat16 and clipping of the full norm."""

import functools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dataset = TensorDataset(torch.randn(512, 64))
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    model = nn.Sequential(*[Block() for _ in range(4)])
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    precision = MixedPrecision(param_dtype=torch.bfloat16)
    model = FullyShardedDataParallel(model, auto_wrap_policy=policy, mixed_precision=precision)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (batch,) in loader:
            optimizer.zero_grad()
            model(batch.cuda()).float().pow(2).mean().backward()
            model.clip_grad_norm_(1.0)
            optimizer.step()
    state = model.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, "/opt/ml/model/model.pt")
    dist.barrier()


if __name__ == "__main__":
    main()
