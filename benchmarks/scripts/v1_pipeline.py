"""SMP v1, pipeline parallelism: the model is cut by the library."""

import argparse

import smdistributed.modelparallel.torch as smp
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms


class Classifier(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(784, width)
        self.outer = nn.Linear(width, 10)

    def forward(self, images):
        return self.outer(torch.relu(self.inner(images.flatten(1))))


@smp.step(non_split_inputs=["class_weights"])
def train_step(model, images, labels, class_weights):
    logits = model(images)
    loss = F.cross_entropy(logits, labels, weight=class_weights)
    model.backward(loss)
    return loss


@smp.step
def test_step(model, images, labels):
    return F.cross_entropy(model(images), labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--width", type=int, default=512)
    args, _ = parser.parse_known_args()

    smp.init()
    torch.cuda.set_device(smp.local_rank())
    device = torch.device("cuda")
    torch.manual_seed(11 + smp.dp_rank())

    if smp.local_rank() == 0:
        datasets.MNIST("data", train=True, download=True)
    smp.barrier()
    dataset = datasets.MNIST("data", train=True, download=False, transform=transforms.ToTensor())
    sampler = DistributedSampler(dataset, num_replicas=smp.dp_size(), rank=smp.dp_rank())
    loader = DataLoader(dataset, batch_size=64, sampler=sampler, drop_last=True)
    class_weights = torch.ones(10, device=device)

    model = smp.DistributedModel(Classifier(args.width))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    optimizer = smp.DistributedOptimizer(optimizer)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = train_step(model, images, labels, class_weights)
            average = loss.reduce_mean()
            optimizer.step()
        if smp.rank() == 0:
            print(epoch, average.item())
        model.eval()
        with torch.no_grad():
            for images, labels in loader:
                held_out = test_step(model, images.to(device), labels.to(device)).reduce_mean()
        print(float(held_out))
    smp.save_checkpoint("checkpoints", tag="last", partial=True, model=model, optimizer=optimizer)


if __name__ == "__main__":
    main()
