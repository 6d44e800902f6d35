import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset


def build_loader(batch_size):
    x = torch.randn(32, 10)
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=batch_size, shuffle=True)


def train(model, loader, optimizer, scaler, device):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        with autocast(enabled=torch.cuda.is_available()):
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return loss.item()


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(nn.Linear(10, 20), nn.GELU(), nn.Linear(20, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = GradScaler(enabled=torch.cuda.is_available())
    loader = build_loader(8)
    for _ in range(2):
        print("loss", train(model, loader, optimizer, scaler, device))


if __name__ == "__main__":
    main()
