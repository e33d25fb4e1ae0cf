"""CLIP in small (Radford et al., ICML 2021, arXiv:2103.00020): images and captions learn to find
each other.

dali-pipes demo objects=true out=data/shapes
python examples/clip/train.py data/shapes/captions_train.json data/shapes/images/train

Lines that end in "# dali_pipes" are those that differ from a training with torchvision's
transforms.
"""

import sys
from dataclasses import replace

import numpy as np
import torch
import torchvision
from torch.nn.functional import cross_entropy, normalize

import dali_pipes as dp  # dali_pipes


class Tokenizer:
    """Words as numbers; a real one, such as CLIPTokenizerFast of transformers, takes the place of
    `encode`.
    """

    def __init__(self, texts, length=24):
        self.words = {
            word: number
            for number, word in enumerate(
                sorted({word for text in texts for word in text.split()}), 1
            )
        }
        self.length = length

    def encode(self, text):
        return ([self.words[word] for word in text.split()] + [0] * self.length)[: self.length]

    def __call__(self, batch, draws):  # dali_pipes: a batch_transform
        # dali_pipes
        tokens = torch.tensor([self.encode(text) for text in batch.text]).to(batch.images.device)
        return replace(batch, targets=batch.targets | {"tokens": tokens})  # dali_pipes


class TextTower(torch.nn.Module):
    def __init__(self, words, length, width=128):
        super().__init__()
        self.words = torch.nn.Embedding(words + 1, width)
        self.places = torch.nn.Parameter(0.1 * torch.randn(length, width))
        layer = torch.nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0, batch_first=True, norm_first=True
        )
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens):
        empty = tokens == 0
        found = self.layers(self.words(tokens) + self.places, src_key_padding_mask=empty)
        return found.masked_fill(empty[..., None], 0).sum(1) / (~empty).sum(1, keepdim=True)


def main(annotations, images, size=96, batch_size=32, epochs=5, lr=1e-3):
    torch.manual_seed(0)
    manifest = dp.Manifest.from_coco(annotations, root=images)  # dali_pipes
    tokenizer = Tokenizer(manifest.take_texts("text", np.arange(len(manifest))))
    # dali_pipes: a flip would make "left of" wrong
    transform = dp.TrainTransform(size=size, scale=(0.8, 1), flip=0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    towers = torch.nn.ModuleList(
        [
            torchvision.models.resnet18(num_classes=128),
            TextTower(len(tokenizer.words), tokenizer.length),
        ]
    )
    scale = torch.nn.Parameter(torch.tensor(2.0, device=device))
    optimizer = torch.optim.AdamW([*towers.to(device).parameters(), scale], lr)
    history = []
    # dali_pipes
    options = {"transform": transform, "batch_size": batch_size, "batch_transform": tokenizer}
    with dp.build_loader(manifest, dp.DaliConfig(), **options) as loader:  # dali_pipes
        for epoch in range(epochs):
            losses, right = zip(
                *(step(towers, scale, optimizer, batch) for batch in loader), strict=True
            )
            history.append(torch.stack(losses).mean().item())
            print(
                f"epoch {epoch}: loss {history[-1]:.3f}, "
                f"{100 * torch.cat(right).float().mean():.0f} % find their captions"
            )
    return history


def step(towers, scale, optimizer, batch):
    seen, read = (
        normalize(tower(given))
        for tower, given in zip(towers, (batch.images, batch["tokens"]), strict=True)
    )
    similarity, own = scale.exp() * seen @ read.T, torch.arange(len(batch), device=seen.device)
    loss = (cross_entropy(similarity, own) + cross_entropy(similarity.T, own)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach(), similarity.argmax(1) == own


if __name__ == "__main__":
    main(*sys.argv[1:])
