"""Image classification as torchvision's reference does it."""
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split


class Pictures(Dataset):
    """Stands in for a dataset that downloads itself."""

    def __init__(self, root, train=True, download=False):
        self.root, self.train = root, train
        if download:
            print("downloading to", root)
        generator = torch.Generator().manual_seed(3)
        self.images = torch.randn(64, 3, 8, 8, generator=generator)
        self.labels = torch.randint(0, 4, (64,), generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class ConvNet(nn.Module):
    def __init__(self, classes):
        super(ConvNet, self).__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.classifier = nn.Linear(8, classes)

    def forward(self, x):
        return self.classifier(torch.flatten(self.features(x), 1))


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)


def get_loaders(root, batch_size):
    dataset = Pictures(root, train=True, download=True)
    train_set, val_set = random_split(dataset, [40, 24])
    loaders = {
        "train": DataLoader(train_set, batch_size=batch_size, shuffle=True, pin_memory=False),
        "val": DataLoader(val_set, batch_size=batch_size, shuffle=False),
    }
    return loaders


def main():
    seed_everything(42)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaders = get_loaders("data", 8)
    model = ConvNet(4)
    class_weights = torch.tensor([1.0, 2.0, 1.0, 1.0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    for epoch in range(1):
        for phase in ["train", "val"]:
            model.train(phase == "train")
            for images, labels in loaders[phase]:
                images = images.to(device, non_blocking=True)
                labels = labels.to(device, non_blocking=True)
                if phase == "train":
                    optimizer.zero_grad()
                    output = model(images)
                    loss = nn.functional.cross_entropy(output, labels, weight=class_weights)
                    loss.backward()
                    optimizer.step()
                else:
                    with torch.no_grad():
                        output = model(images)
                        loss = nn.functional.cross_entropy(output, labels)
                print(phase, loss.item())
        scheduler.step()


if __name__ == "__main__":
    main()
