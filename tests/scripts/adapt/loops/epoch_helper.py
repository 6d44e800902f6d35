"""train_one_epoch and evaluate, the way of many tutorials."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_one_epoch(model, criterion, optimizer, data_loader, device, epoch):
    model.train()
    running = 0.0
    for step, (image, target) in enumerate(data_loader):
        image, target = image.to(device), target.to(device)
        output = model(image)
        loss = criterion(output, target)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        accuracy = (output.argmax(1) == target).float().mean()
        running += loss.item()
        if step % 2 == 0:
            print(f"{epoch}/{step}: {loss.item():.3f} acc {accuracy.item():.2f}")
    return running


def evaluate(model, criterion, data_loader, device):
    model.eval()
    correct, seen, total = 0, 0, 0.0
    with torch.inference_mode():
        for image, target in data_loader:
            image, target = image.to(device), target.to(device)
            output = model(image)
            loss = criterion(output, target)
            total += loss.item() * len(target)
            correct += (output.argmax(1) == target).sum().item()
            seen += len(target)
    return total / seen, correct / seen


def main():
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    images = torch.randn(48, 3, 8, 8)
    labels = torch.randint(0, 5, (48,))
    train_loader = DataLoader(TensorDataset(images[:32], labels[:32]), batch_size=8, shuffle=True)
    val_loader = DataLoader(TensorDataset(images[32:], labels[32:]), batch_size=8)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
    model = model.to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    for epoch in range(1):
        train_one_epoch(model, criterion, optimizer, train_loader, device, epoch)
        scheduler.step()
        print(evaluate(model, criterion, val_loader, device))
    torch.save(
        {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()},
        f"checkpoint_{epoch}.pt",
    )


if __name__ == "__main__":
    main()
