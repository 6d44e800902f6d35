"""SMP v1 with automatic mixed precision; gradients accumulate, and are sharded where the plan says so."""

import argparse

import smdistributed.modelparallel.torch as smp
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@smp.step
def forward_backward(model, scaler, inputs, targets, passes):
    with torch.cuda.amp.autocast():
        loss = F.mse_loss(model(inputs), targets)
    model.backward(scaler.scale(loss / passes))
    return loss


def train(args, model, optimizer, scaler, loader, device):
    for number, (inputs, targets) in enumerate(loader, 1):
        loss_mb = forward_backward(model, scaler, inputs.to(device), targets.to(device), args.passes)
        if number % args.passes == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if number % 50 == 0 and smp.rank() == 0:
            loss = loss_mb.reduce_mean()
            print(number, loss.item())


def main(args):
    smp.init()
    torch.cuda.set_device(smp.local_rank())
    device = torch.device("cuda", smp.local_rank())
    torch.manual_seed(args.seed + smp.dp_rank())
    dataset = TensorDataset(torch.zeros(512, 64), torch.zeros(512, 1))
    sampler = DistributedSampler(dataset, rank=smp.dp_rank(), num_replicas=smp.dp_size())
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, num_workers=0, drop_last=True)
    model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 1))
    model = smp.DistributedModel(model, backward_passes_per_step=args.passes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = smp.DistributedOptimizer(optimizer)
    scaler = smp.amp.GradScaler()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        train(args, model, optimizer, scaler, loader, device)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--passes", type=int, default=4)
    main(parser.parse_known_args()[0])
