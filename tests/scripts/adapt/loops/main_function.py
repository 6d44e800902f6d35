import argparse
import os

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __init__(self, size):
        self.data = torch.linspace(-1, 1, size).unsqueeze(1)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        value = self.data[index]
        return value, value**2


class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.up = nn.Linear(1, hidden)
        self.down = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--model-dir", default=os.environ.get("SM_MODEL_DIR", "."))
    return parser.parse_args()


def main():
    args = parse()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Net(32)
    model.to(device)
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    train_loader = DataLoader(Squares(64), args.batch_size, True)
    for epoch in range(args.epochs):
        total = 0.0
        for batch, target in train_loader:
            batch = batch.to(device)
            target = target.to(device)
            optimizer.zero_grad()
            loss = F.mse_loss(model(batch), target)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print("epoch", epoch, "loss", total / len(train_loader))
    torch.save(model.state_dict(), os.path.join(args.model_dir, "model.pth"))


if __name__ == "__main__":
    main()
