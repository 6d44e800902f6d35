# plan: {"pipeline_parallel_degree": 2, "microbatches": 4, "ddp": true}
"""A vision script that also runs without the library, with automatic mixed precision and validation."""
import argparse
import contextlib
import os
import time

import torch
import torch.nn as nn
import torchvision
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

try:
    import smdistributed.modelparallel.torch as smp
except ImportError:
    smp = None

USE_SMP = smp is not None


def dp_rank():
    return smp.dp_rank() if USE_SMP else 0


def dp_size():
    return smp.dp_size() if USE_SMP else 1


def get_transform(train):
    steps = [torchvision.transforms.ToTensor(), torchvision.transforms.Lambda(lambda x: x * 2 - 1)]
    if train:
        steps.insert(0, torchvision.transforms.RandomHorizontalFlip())
    return torchvision.transforms.Compose(steps)


def get_data(args):
    if not USE_SMP or smp.local_rank() == 0:
        torchvision.datasets.CIFAR10(args.data, train=True, download=True)
    if USE_SMP:
        smp.barrier()
    train = torchvision.datasets.CIFAR10(args.data, train=True, transform=get_transform(True))
    test = torchvision.datasets.CIFAR10(args.data, train=False, transform=get_transform(False))
    if dp_size() > 1:
        sampler = DistributedSampler(train, num_replicas=dp_size(), rank=dp_rank())
    else:
        generator = torch.Generator()
        generator.manual_seed(args.seed)
        sampler = RandomSampler(train, generator=generator)
    kwargs = dict(batch_size=args.batch_size, num_workers=2, pin_memory=True, drop_last=True)
    return DataLoader(train, sampler=sampler, **kwargs), DataLoader(test, shuffle=False, **kwargs), sampler


def maybe_step(function):
    return smp.step(function) if USE_SMP else function


@maybe_step
def train_step(model, scaler, data, target):
    with torch.autocast("cuda"):
        output = model(data)
        loss = nn.functional.cross_entropy(output, target)
    scaled = scaler.scale(loss)
    model.backward(scaled)
    return output, loss


@maybe_step
def test_step(model, data, target):
    output = model(data)
    loss = nn.functional.cross_entropy(output, target, reduction="sum")
    correct = output.argmax(dim=1).eq(target).sum()
    return loss, correct


def train(args, model, scaler, optimizer, loader, device, epoch):
    model.train()
    started = time.time()
    for number, (data, target) in enumerate(loader):
        data, target = data.to(device, non_blocking=True), target.to(device, non_blocking=True)
        optimizer.zero_grad()
        _, loss_mb = train_step(model, scaler, data, target)
        scaler.step(optimizer)
        scaler.update()
        if number % 50 == 0:
            loss = loss_mb.reduce_mean()
            print(f"epoch {epoch} batch {number} loss {loss.item():.4f} {time.time() - started:.1f} s")


def test(model, loader, device):
    model.eval()
    total = correct = 0.0
    with torch.no_grad():
        for data, target in loader:
            loss_batch, correct_batch = test_step(model, data.to(device), target.to(device))
            total += sum(loss.item() for loss in loss_batch.outputs)
            correct += correct_batch.reduce_sum().item()
    return total, correct


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", default=os.getenv("SM_CHANNEL_TRAINING", "/tmp/data"))
    args = parser.parse_known_args()[0]
    context = contextlib.nullcontext()
    if USE_SMP:
        smp.init()
        torch.cuda.set_device(smp.local_rank())
    torch.manual_seed(args.seed)
    device = torch.device("cuda")
    train_loader, test_loader, sampler = get_data(args)
    with context:
        model = torchvision.models.resnet50(num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model = smp.DistributedModel(model)
    optimizer = smp.DistributedOptimizer(optimizer)
    scaler = smp.amp.GradScaler()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(args.epochs):
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch)
        train(args, model, scaler, optimizer, train_loader, device, epoch)
        total, correct = test(model, test_loader, device)
        if smp.rank() == 0:
            print(total, correct)
        scheduler.step()
    if smp.dp_rank() == 0:
        checkpoint = {"model": model.local_state_dict(), "optimizer": optimizer.local_state_dict()}
        smp.save(checkpoint, os.path.join("/opt/ml/checkpoints", "last.pt"), partial=True)
    smp.barrier()


if __name__ == "__main__":
    main()
