"""CLIP in small (Radford et al., ICML 2021, arXiv:2103.00020): images and captions learn to find
each other.

python examples/shapes.py data/shapes
dali-pipes train function=./examples/clip/clip.py:make \\
    data.train=data/shapes/captions_train.json data.train_images=data/shapes/images/train \\
    data.val=data/shapes/captions_val.json data.val_images=data/shapes/images/val \\
    transform.size=96 transform.scale=[0.8,1] transform.flip=0 \\
    optimizer=adamw batch_size=32 epochs=5

A flip would make "left of" wrong.
"""

import numpy as np
import torch
import torchvision
from torch import nn
from torch.nn.functional import cross_entropy, normalize


class Tokenizer:
    """Words as numbers; a real one, such as CLIPTokenizerFast of transformers, takes the place of
    `encode`.
    """

    def __init__(self, texts, length=24):
        words = sorted({word for text in texts for word in text.split()})
        self.words = {word: number for number, word in enumerate(words, 1)}
        self.length = length

    def encode(self, text):
        known = [self.words[word] for word in text.split() if word in self.words]
        return (known + [0] * self.length)[: self.length]


class TextTower(nn.Module):
    def __init__(self, words, length, width=128):
        super().__init__()
        self.words = nn.Embedding(words + 1, width)
        self.places = nn.Parameter(0.1 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens):
        empty = tokens == 0
        found = self.layers(self.words(tokens) + self.places, src_key_padding_mask=empty)
        return found.masked_fill(empty[..., None], 0).sum(1) / (~empty).sum(1, keepdim=True)


class Clip(nn.Module):
    def __init__(self, tokenizer):
        super().__init__()
        self.tokenizer = tokenizer
        self.images = torchvision.models.resnet18(num_classes=128)
        self.texts = TextTower(len(tokenizer.words), tokenizer.length)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def step(self, batch):
        similarity, own = self.compare(batch)
        return (cross_entropy(similarity, own) + cross_entropy(similarity.T, own)) / 2

    def evaluate(self, batch):
        similarity, own = self.compare(batch)
        loss = (cross_entropy(similarity, own) + cross_entropy(similarity.T, own)) / 2
        return {"loss": loss, "found": similarity.argmax(1) == own}

    def compare(self, batch):
        """(N, N) similarities of images and captions, and where those that belong together are."""
        encoded = [self.tokenizer.encode(text) for text in batch.text]
        tokens = torch.tensor(encoded, device=batch.images.device)
        seen, read = self.images(batch.images.float()), self.texts(tokens)
        similarity = self.scale.exp() * normalize(seen.float()) @ normalize(read.float()).T
        return similarity, torch.arange(len(batch), device=tokens.device)


def make(config, manifest):
    return Clip(Tokenizer(manifest.take_texts("text", np.arange(len(manifest)))))
