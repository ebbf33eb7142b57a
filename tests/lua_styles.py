"""Networks in other people's styles: functional, with einops-like views, blocks of registries, loops, kwargs, masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm


class PatchTransformer(nn.Module):
    """Patches by reshape and permute, a class token, attention by einsum, a learned scale of each residual."""

    def __init__(self, dim: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.embed = nn.Linear(2 * 2 * 3, dim)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, dim)), nn.Parameter(torch.randn(1, 7, dim))
        self.norm, self.qkv, self.proj = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.gamma = nn.Parameter(1e-1 * torch.ones(dim))
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, dim))
        self.head = nn.Linear(dim, 5)

    def forward(self, img: Tensor) -> Tensor:
        b, c, h, w = img.shape
        x = img.reshape(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(b, (h // 2) * (w // 2), -1)
        x = torch.cat((self.token.expand(b, -1, -1), self.embed(x)), dim=1) + self.places
        n = x.size(1)
        q, k, v = self.qkv(self.norm(x)).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (torch.einsum("bhid,bhjd->bhij", q, k) * self.scale).softmax(dim=-1)
        out = torch.einsum("bhij,bhjd->bhid", weights, v).transpose(1, 2).flatten(2)
        x = x + self.gamma * self.proj(out)
        x = x + self.mlp(x)
        return self.head(x[:, 0])


class Next(nn.Module):
    """A depthwise convolution, then linear layers with channels last, of images that are not square."""

    def __init__(self, dim: int = 6) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 2, 2)
        self.dw, self.norm = nn.Conv2d(dim, dim, 3, padding=1, groups=dim), nn.LayerNorm(dim, eps=1e-6)
        self.up, self.down, self.gamma = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim), nn.Parameter(torch.rand(dim))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.dw(x).permute(0, 2, 3, 1)
        y = self.gamma * self.down(F.gelu(self.up(self.norm(y))))
        x = x + y.permute(0, 3, 1, 2)
        return x.mean([-2, -1])


class ConvAct(nn.Sequential):
    def __init__(self, i: int, o: int, k: int = 3, s: int = 1, groups: int = 1, act: Any = nn.Hardswish) -> None:
        layers = [nn.Conv2d(i, o, k, s, k // 2, groups=groups, bias=False), nn.BatchNorm2d(o, eps=1e-3, momentum=0.01)]
        super().__init__(*layers, act() if act else nn.Identity())


class Inverted(nn.Module):
    """An inverted residual as mobile networks have it, with squeeze and excitation."""

    def __init__(self, i: int, o: int, s: int, grow: int = 2) -> None:
        super().__init__()
        mid = i * grow
        self.use_res_connect = s == 1 and i == o
        self.layers = nn.ModuleList([ConvAct(i, mid, 1), ConvAct(mid, mid, 3, s, mid)])
        self.se = nn.ModuleDict({"reduce": nn.Conv2d(mid, 2, 1), "expand": nn.Conv2d(2, mid, 1)})
        self.project = ConvAct(mid, o, 1, act=None)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for layer in self.layers:
            y = layer(y)
        s = F.adaptive_avg_pool2d(y, (1, 1))
        y = y * F.hardsigmoid(self.se["expand"](F.relu(self.se["reduce"](s), inplace=True)))
        y = self.project(y)
        return x + y if self.use_res_connect else y


class Mobile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(ConvAct(3, 4, 3, 2), Inverted(4, 4, 1), Inverted(4, 6, 2), Inverted(6, 6, 1))
        self.classifier = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(self.blocks(x), 1), start_dim=1))


class TiedAutoencoder(nn.Module):
    """The decoder is the transposed encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.bias = nn.Linear(6, 4), nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.t(), self.bias))


class GatedConvolutions(nn.Module):
    """Causal gated convolutions over tokens, with weights that are normalized."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.convs = nn.ModuleList(weight_norm(nn.Conv1d(4, 8, 3)) for _ in range(2))
        self.out = nn.Conv1d(4, 9, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens).transpose(1, 2)
        for conv in self.convs:
            x = (x + F.glu(conv(F.pad(x, (2, 0))), dim=1)) * math.sqrt(0.5)
        return F.log_softmax(self.out(x), dim=1)


class Wave(nn.Module):
    """Dilated convolutions with skip connections that are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 4, 1)
        self.filters = nn.ModuleList([nn.Conv1d(4, 4, 2, dilation=2**i) for i in range(3)])
        self.gates = nn.ModuleList([nn.Conv1d(4, 4, 2, dilation=2**i) for i in range(3)])
        self.skips = nn.ModuleList([nn.Conv1d(4, 3, 1) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.first(x), 0
        for f, g, s in zip(self.filters, self.gates, self.skips):
            y = torch.tanh(f(x)) * torch.sigmoid(g(x))
            x = y + x[..., -y.size(-1) :]
            total = s(y)[..., -5:] + total
        return F.elu(total)


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(6), nn.LayerNorm(6)])
        self.tokens = nn.Sequential(nn.Linear(4, 8), nn.GELU(approximate="tanh"), nn.Linear(8, 4))
        self.channels = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norms[0](x).mT).mT
        x = x + self.channels(self.norms[1](x))
        return x.mean(dim=1)


class Highway(nn.Module):
    """A dictionary of layers, an option with a default, gates that are chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({f"layer{i}": nn.Linear(5, 10) for i in range(2)})
        self.activations = {"relu": F.relu, "tanh": torch.tanh}

    def forward(self, x: Tensor, *, activation: str = "tanh", keep: float = 1.0) -> dict[str, Tensor]:
        hidden = {}
        for name, layer in self.layers.items():
            h, t = layer(x).chunk(2, -1)
            t = torch.sigmoid(t - 2)
            x = t * self.activations[activation](h) + (keep - t) * x
            hidden[name] = x
        return {"last": x, "mean": torch.stack(list(hidden.values())).mean(0)}


class Film(nn.Module):
    """Images whose channels a second input scales and shifts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding="same"), nn.InstanceNorm2d(4)
        self.film = nn.Linear(3, 8)

    def forward(self, image: Tensor, condition: Tensor) -> Tensor:
        gamma, beta = self.film(condition).view(-1, 2, 4, 1, 1).unbind(1)
        y = self.norm(self.conv(image)) * (1 + gamma) + beta
        return F.max_pool2d(F.leaky_relu(y, 0.2), 2)


class Decoder(nn.Module):
    """A loop over steps with a cell, and attention by bmm."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cell = nn.GRU(3, 4, batch_first=True), nn.GRUCell(7, 4)
        self.score, self.out = nn.Linear(4, 4, bias=False), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        memory, h = self.encoder(x)
        h, y, outputs = h[-1], torch.zeros(x.size(0), 3), []
        for _ in range(3):
            weights = F.softmax(torch.bmm(self.score(memory), h.unsqueeze(2)).squeeze(2), dim=1)
            context = (weights.unsqueeze(1) @ memory).squeeze(1)
            h = self.cell(torch.cat([y, context], dim=1), h)
            y = self.out(torch.cat([h, context], dim=1))
            outputs.append(y)
        return torch.stack(outputs, dim=1)


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.PReLU(), nn.Linear(6, 5))

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b = self.body(a), self.body(b)
        return F.cosine_similarity(a, b), F.pairwise_distance(a, b), (a - b).abs().sum(-1, keepdim=True)


class SuperResolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.ModuleList([nn.Conv2d(3 + 2 * i, 2, 3, 1, 1) for i in range(3)])
        self.tail = nn.Sequential(nn.Conv2d(9, 12, 3, padding=1, padding_mode="reflect"), nn.PixelShuffle(2))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for conv in self.dense:
            features.append(F.leaky_relu(conv(torch.cat(features, 1)), negative_slope=0.2))
        low = F.interpolate(x, scale_factor=2.0, mode="bicubic", align_corners=False)
        return (self.tail(torch.cat(features, 1)) * 0.2 + low).clamp(-2.0, 2.0)


class GraphConvolution(nn.Module):
    """A fixed adjacency matrix in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        adjacency = torch.eye(4) + torch.diag(torch.ones(3), 1) + torch.diag(torch.ones(3), -1)
        degree = adjacency.sum(1).rsqrt()
        self.register_buffer("a", degree[:, None] * adjacency * degree[None, :])
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(3, 5)), nn.Parameter(torch.randn(5, 2))])

    def forward(self, x: Tensor) -> Tensor:
        for i, w in enumerate(self.weights):
            x = self.a @ (x @ w)
            x = F.relu(x) if i == 0 else x
        return x.amax(dim=1)


class Shuffle(nn.Module):
    """Channels split, shuffled by view and transpose, and grouped."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Conv2d(4, 4, 1, groups=2), nn.BatchNorm2d(4), nn.ReLU6())
        self.last = nn.Conv2d(8, 8, 3, padding=1, groups=4)

    def forward(self, x: Tensor) -> Tensor:
        a, b = torch.split(x, x.shape[1] // 2, dim=1)
        y = torch.cat([a, self.branch(b)], dim=1)
        n, c, h, w = y.size()
        y = y.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        return self.last(y)


class Coordinates(nn.Module):
    """Two channels of coordinates next to those of the image, made in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(5, 4, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, _, h, w = x.shape
        rows, columns = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
        grid = torch.stack([rows, columns]).unsqueeze(0).repeat(n, 1, 1, 1)
        y = self.conv(torch.cat([x, grid.to(x.dtype)], dim=1))
        a, b = torch.broadcast_tensors(y.mean((2, 3), keepdim=True), y)
        return (b - a).flatten(1)


class RMS(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x)


class Rotary(nn.Module):
    """A decoder block as large language models have it: rotary places, a causal mask, a gated linear unit."""

    def __init__(self, dim: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.table = nn.Embedding(11, dim)
        self.norm1, self.norm2, self.norm = RMS(dim), RMS(dim), RMS(dim)
        self.wq, self.wk = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wv, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.gate, self.up = nn.Linear(dim, 12, bias=False), nn.Linear(dim, 12, bias=False)
        self.down = nn.Linear(12, dim, bias=False)
        inverse = 1.0 / (10000 ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim))
        self.register_buffer("inverse", inverse, persistent=False)

    def rotate(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(x.shape[-2]).float(), self.inverse)
        angles = torch.cat((angles, angles), dim=-1)
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * angles.cos() + turned * angles.sin()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        b, t, _ = x.shape
        y = self.norm1(x)
        q, k, v = (w(y).view(b, t, self.heads, self.head_dim).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = self.rotate(q), self.rotate(k)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        scores = scores + torch.full((t, t), float("-inf")).triu(diagonal=1)
        y = (F.softmax(scores.float(), dim=-1).type_as(q) @ v).transpose(1, 2).contiguous().view(b, t, -1)
        x = x + self.wo(y)
        y = self.norm2(x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return F.linear(self.norm(x), self.table.weight)


class Tagger(nn.Module):
    """A bidirectional LSTM with a learned first state, and attention over steps that padding does not take part in."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4, padding_idx=0)
        self.h0, self.c0 = nn.Parameter(torch.randn(2, 1, 3)), nn.Parameter(torch.randn(2, 1, 3))
        self.lstm, self.score = nn.LSTM(4, 3, bidirectional=True, batch_first=True), nn.Linear(6, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = tokens != 0
        state = tuple(s.expand(-1, tokens.size(0), -1).contiguous() for s in (self.h0, self.c0))
        h, _ = self.lstm(self.table(tokens), state)
        scores = self.score(h).squeeze(-1).masked_fill(~mask, float("-inf"))
        pooled = (scores.softmax(1).unsqueeze(-1) * h).sum(1)
        return pooled + (h * mask.unsqueeze(-1).float()).sum(1) / mask.sum(1, keepdim=True)


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(3, 2, 1))
        self.branches = nn.ModuleList([nn.Conv2d(3, 2, 1), nn.Conv2d(3, 3, (1, 3), padding=(0, 1)), pool])
        self.aux = nn.Linear(7, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.cat([branch(x) for branch in self.branches], 1)
        return F.avg_pool2d(y, 2, stride=1), self.aux(y.mean(3).mean(2))


class Conditional(nn.Module):
    """Choices by elements: where, comparisons, sign-like masks."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.where(x > 0.1, self.a(x), self.b(x))
        y = y * (y.abs() < 1.0) + torch.where(y >= 0, y, -0.3 * y)
        return y.masked_fill((x > 0) & (y <= 0.5), 2.0)


class EncoderDecoder(nn.Module):
    """PyTorch's own transformer, with a padding mask and a causal one."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(7, 8), nn.Embedding(7, 8)
        self.body = nn.Transformer(8, 2, 1, 1, 12, dropout=0.1, batch_first=True)
        self.body.encoder.use_nested_tensor = False  # a prototype, which warns
        self.head = nn.Linear(8, 7)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        causal = torch.ones(target.size(1), target.size(1), dtype=torch.bool).triu(1)
        padding = source == 0
        y = self.body(
            self.source(source) * math.sqrt(8),
            self.target(target),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return self.head(y)


class Windows(nn.Module):
    """Windows that are cut by view and permute and shifted by roll, with a table of relative places."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(9, 2))
        places = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")).flatten(1)
        relative = (places[:, :, None] - places[:, None, :] + 1).permute(1, 2, 0)
        self.register_buffer("index", relative[..., 0] * 3 + relative[..., 1])
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        x = torch.roll(x, shifts=(-1, -1), dims=(1, 2))
        x = x.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        q, k, v = self.qkv(x).reshape(-1, 4, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        bias = self.bias[self.index.view(-1)].view(4, 4, 2).permute(2, 0, 1)
        weights = (q @ k.transpose(-2, -1) * 0.7 + bias.unsqueeze(0)).softmax(-1)
        x = (weights @ v).transpose(1, 2).reshape(b, h // 2, w // 2, 2, 2, c)
        return torch.roll(x.permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c), (1, 1), (1, 2))


STYLES: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "patches": lambda: (PatchTransformer(), torch.randn(2, 3, 4, 6)),
    "next": lambda: (Next(), torch.randn(2, 3, 6, 10)),
    "mobile": lambda: (Mobile(), torch.randn(2, 3, 16, 12)),
    "tied": lambda: (TiedAutoencoder(), torch.randn(3, 6)),
    "gated": lambda: (GatedConvolutions(), torch.randint(0, 9, (2, 6))),
    "wave": lambda: (Wave(), torch.randn(2, 1, 16)),
    "mixer": lambda: (Mixer(), torch.randn(2, 4, 6)),
    "highway": lambda: (Highway(), torch.randn(3, 5)),
    "film": lambda: (Film(), (torch.randn(2, 2, 4, 6), torch.randn(2, 3))),
    "decoder": lambda: (Decoder(), torch.randn(2, 4, 3)),
    "siamese": lambda: (Siamese(), (torch.randn(3, 4), torch.randn(3, 4))),
    "resolution": lambda: (SuperResolution(), torch.randn(1, 3, 5, 6)),
    "graph": lambda: (GraphConvolution(), torch.randn(2, 4, 3)),
    "shuffle": lambda: (Shuffle(), torch.randn(2, 8, 4, 6)),
    "coordinates": lambda: (Coordinates(), torch.randn(2, 3, 6, 5)),
    "rotary": lambda: (Rotary(), torch.randint(0, 11, (2, 5))),
    "tagger": lambda: (Tagger(), torch.tensor([[3, 1, 8, 2], [4, 5, 0, 0]])),
    "inception": lambda: (Inception(), torch.randn(2, 3, 5, 6)),
    "conditional": lambda: (Conditional(), torch.randn(5, 4)),
    "translator": lambda: (EncoderDecoder(), (torch.tensor([[3, 1, 2, 0], [4, 5, 0, 0]]), torch.randint(0, 7, (2, 3)))),
    "windows": lambda: (Windows(), torch.randn(2, 4, 6, 4)),
}


def style_of(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A network in evaluation mode, with moving means that are not those of a new one, and its inputs."""
    torch.manual_seed(3)
    module, inputs = STYLES[name]()
    for inner in module.modules():
        if isinstance(inner, nn.modules.batchnorm._BatchNorm):
            inner.running_mean.normal_(0, 0.2)
            inner.running_var.uniform_(0.5, 2)
    return module.eval(), inputs if isinstance(inputs, tuple) else (inputs,)
