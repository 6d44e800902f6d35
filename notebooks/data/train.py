"""Train a small decoder on token ids."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Decoder(nn.Module):
    def __init__(self, vocabulary=256, width=64, blocks=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True) for _ in range(blocks)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-4)
    arguments = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = TensorDataset(torch.randint(0, 256, (64, 33)))
    loader = DataLoader(data, batch_size=arguments.batch_size, shuffle=True)
    model = Decoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    for epoch in range(arguments.epochs):
        for step, (tokens,) in enumerate(loader):
            tokens = tokens.to(device)
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 4 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
