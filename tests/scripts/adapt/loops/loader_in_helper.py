import logging

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, TensorDataset

logger = logging.getLogger(__name__)


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, 2)

    def forward(self, x):
        x = checkpoint(self.first, x, use_reentrant=False)
        return self.second(x)


def load_data(batch_size):
    inputs, targets = torch.randn(30, 5), torch.randint(0, 2, (30,))
    train = TensorDataset(inputs[:20], targets[:20])
    test = TensorDataset(inputs[20:], targets[20:])
    train_dl = DataLoader(train, sampler=RandomSampler(train), batch_size=batch_size)
    test_dl = DataLoader(test, sampler=SequentialSampler(test), batch_size=batch_size)
    return train_dl, test_dl


def loss_of(model, batch):
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs), targets)


def validate(net, dl):
    net.eval()
    hits = count = 0
    with torch.no_grad():
        for xb, yb in dl:
            predicted = torch.argmax(net(xb), dim=-1)
            hits += (predicted == yb).sum().item()
            count += yb.numel()
    return hits / count


def fit(epochs=1):
    net = Stack()
    optim = torch.optim.Adam(net.parameters())
    train_dl, test_dl = load_data(4)
    for epoch in range(epochs):
        net.train()
        for batch in train_dl:
            optim.zero_grad()
            loss = loss_of(net, batch)
            loss.backward()
            optim.step()
            logger.info("loss %s", loss.item())
        print(epoch, loss.item(), validate(net, test_dl))
    return net


if __name__ == "__main__":
    fit()
