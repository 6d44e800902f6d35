"""DDP over images: a sampler per process, one rank that saves."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def evaluate(model: nn.Module, loader: DataLoader) -> float:
    total = torch.zeros(1).cuda()
    model.eval()
    with torch.no_grad():
        for images, labels in loader:
            total += (model(images.cuda()).argmax(1) == labels.cuda()).sum()
    dist.all_reduce(total)
    model.train()
    return total.item()


def main() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dataset = TensorDataset(torch.randn(512, 32), torch.randint(0, 10, (512,)))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).cuda()
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = loss_of(model(images.cuda()), labels.cuda())
            loss.backward()
            optimizer.step()
        evaluate(model, loader)
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "/opt/ml/model/model.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
