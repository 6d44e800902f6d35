import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATION_STEPS = 2


def main():
    data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    loader = DataLoader(data, batch_size=4, shuffle=True, drop_last=False)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer.zero_grad()
    for epoch in range(1):
        for i, (x, y) in enumerate(loader):
            prediction = model(x)
            loss = nn.functional.mse_loss(prediction, y)
            loss = loss / ACCUMULATION_STEPS  # mean over the passes
            loss.backward()
            if (i + 1) % ACCUMULATION_STEPS == 0:
                optimizer.step()
                optimizer.zero_grad()
                print(i, loss.item() * ACCUMULATION_STEPS)


main()
