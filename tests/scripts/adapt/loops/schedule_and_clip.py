import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR
from torch.utils.data import DataLoader, TensorDataset


def make_optimizer(model, lr):
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    return AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=lr)


class MLP(nn.Module):
    def __init__(self, width=16, depth=4):
        super().__init__()
        self.layers = nn.Sequential(*[Layer(width) for _ in range(depth)])
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.layers(x))


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return torch.relu(self.linear(x)) + x


def run(steps=4):
    data = torch.randn(64, 16)
    loader = DataLoader(TensorDataset(data, data.mean(1, keepdim=True)), batch_size=16, shuffle=True)
    net = MLP().cuda() if torch.cuda.is_available() else MLP()
    opt = make_optimizer(net, 1e-3)
    warmup = LambdaLR(opt, lambda step: min(1.0, (step + 1) / 2))
    step = 0
    while step < steps:
        for x, y in loader:
            opt.zero_grad()
            prediction = net(x)
            loss = ((prediction - y) ** 2).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.5)
            opt.step()
            warmup.step()
            step += 1
            print(step, loss.item(), warmup.get_last_lr()[0])
            if step == steps:
                break


if __name__ == "__main__":
    run()
