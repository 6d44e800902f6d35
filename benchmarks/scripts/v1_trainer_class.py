"""SMP v1, pipeline parallelism in a trainer of one's own: settings in a dataclass, the step as a method's decorator."""

import argparse
import functools
import logging
import os
import random
from dataclasses import dataclass, field

import numpy as np
import smdistributed.modelparallel.torch as smp
import torch
import torch.nn as nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

logger = logging.getLogger(__name__)


@dataclass
class Settings:
    data: str = "/opt/ml/input/data/train"
    batch_size: int = 32
    epochs: int = 3
    lr: float = 3e-4
    log_every: int = 50
    widths: list = field(default_factory=lambda: [256, 256])


class Rows(Dataset):
    def __init__(self, folder):
        self.paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        row = torch.load(self.paths[index])
        return row["features"], row["target"]


class Tower(nn.Module):
    def __init__(self, widths):
        super().__init__()
        layers = []
        for width in widths:
            layers += [nn.LazyLinear(width), nn.GELU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], 1)

    def forward(self, features):
        return self.head(self.body(features)).squeeze(-1)


@smp.step
def forward_backward(model, features, target, criterion):
    prediction = model(features)
    loss = criterion(prediction, target)
    model.backward(loss)
    return loss, prediction


@smp.step
def forward_only(model, features, target, criterion):
    return criterion(model(features), target)


class Trainer:
    def __init__(self, settings):
        self.settings = settings
        self.device = torch.device("cuda", smp.local_rank())
        self.criterion = nn.MSELoss()
        self.model = smp.DistributedModel(Tower(settings.widths))
        inner = torch.optim.AdamW(self.model.parameters(), lr=settings.lr)
        self.optimizer = smp.DistributedOptimizer(inner)
        self.scheduler = CosineAnnealingLR(self.optimizer, T_max=settings.epochs)
        make_loader = functools.partial(DataLoader, batch_size=settings.batch_size, num_workers=0, drop_last=True)
        rows = Rows(settings.data)
        self.sampler = DistributedSampler(rows, num_replicas=smp.dp_size(), rank=smp.dp_rank())
        self.loader = make_loader(rows, sampler=self.sampler)

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.model.train()
        for number, (features, target) in enumerate(self.loader):
            features, target = features.to(self.device), target.to(self.device)
            self.optimizer.zero_grad()
            losses, predictions = forward_backward(self.model, features, target, self.criterion)
            self.optimizer.step()
            if number % self.settings.log_every == 0:
                loss = losses.reduce_mean()
                spread = predictions.concat().std()
                logger.info("epoch %d step %d loss %.4f spread %.4f", epoch, number, loss.item(), spread.item())
        self.scheduler.step()

    def evaluate(self):
        self.model.eval()
        total = 0.0
        with torch.no_grad():
            for features, target in self.loader:
                losses = forward_only(self.model, features.to(self.device), target.to(self.device), self.criterion)
                total += losses.reduce_mean().item()
        return total / len(self.loader)

    def save(self, folder):
        smp.save_checkpoint(folder, tag="latest", partial=True, model=self.model, optimizer=self.optimizer)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    args, _ = parser.parse_known_args()
    smp.init()
    torch.cuda.set_device(smp.local_rank())
    random.seed(args.seed + smp.dp_rank())
    np.random.seed(args.seed + smp.dp_rank())
    torch.manual_seed(args.seed + smp.dp_rank())
    trainer = Trainer(Settings(epochs=args.epochs))
    for epoch in range(args.epochs):
        trainer.train_epoch(epoch)
        if smp.rank() == 0:
            print("epoch", epoch)
        logger.info("held out %.4f", trainer.evaluate())
    trainer.save(os.environ.get("SM_MODEL_DIR", "/opt/ml/model"))


if __name__ == "__main__":
    main()
