"""Options in a dictionary, a model that is made one way or the other, and wrapped in a class."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DataParallel
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(12, 48)
        self.outer = nn.Linear(48, 3)

    def forward(self, x):
        return F.log_softmax(self.outer(torch.relu(self.inner(x))), dim=1)


class Runner:
    def __init__(self, model, device):
        self.device = device
        if torch.cuda.device_count() > 1:
            self.model = DataParallel(model)
        else:
            self.model = model
        self.model.to(device)
        self.optimizer = torch.optim.Adadelta(self.model.parameters(), lr=1.0)

    def epoch(self, loader, epoch):
        self.model.train()
        for batch_idx, (data, target) in enumerate(loader):
            data, target = data.to(self.device), target.to(self.device)
            self.optimizer.zero_grad()
            output = self.model(data)
            loss = F.nll_loss(output, target)
            loss.backward(); self.optimizer.step()
            if batch_idx % 2 == 0:
                print(f"epoch {epoch}: {loss.item():.4f}")

    def test(self, loader):
        self.model.eval()
        total = 0

        def correct(data, target):
            predicted = self.model(data.to(self.device)).argmax(dim=1, keepdim=True)
            return predicted.eq(target.to(self.device).view_as(predicted)).sum().item()

        with torch.no_grad():
            for data, target in loader:
                total += correct(data, target)
        return total


def main():
    parser = argparse.ArgumentParser(description="branches")
    parser.add_argument("--small", action="store_true", help="a smaller model")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_kwargs = {"batch_size": 8}
    test_kwargs = {"batch_size": 8}
    shared = {"num_workers": 0, "shuffle": True}
    train_kwargs.update(shared)
    test_kwargs.update(shared)
    inputs, targets = torch.randn(64, 12), torch.randint(0, 3, (64,))
    train_data = TensorDataset(inputs[:40], targets[:40])
    test_data = TensorDataset(inputs[40:], targets[40:])
    train_loader = DataLoader(train_data, **train_kwargs)
    test_loader = DataLoader(test_data, **test_kwargs)

    if args.small:
        model = nn.Sequential(nn.Linear(12, 3), nn.LogSoftmax(dim=1)).to(device)
    else:
        model = Wide().to(device)
    runner = Runner(model, device)
    scheduler = StepLR(runner.optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, 3):
        runner.epoch(train_loader, epoch)
        print("correct", runner.test(test_loader))
        scheduler.step()


if __name__ == "__main__":
    main()
