"""OpenCLIP's standard model in plain torch with its own names: an oracle beside transformers."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Module()
        self.mlp.c_fc, self.mlp.c_proj = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x, mask=None):
        seen = self.ln_1(x)
        x = x + self.attn(seen, seen, seen, attn_mask=mask, need_weights=False)[0]
        inside = self.mlp.c_fc(self.ln_2(x))
        return x + self.mlp.c_proj(inside * torch.sigmoid(1.702 * inside))  # quick GELU


def stack(width, layers):
    tower = nn.Module()
    tower.resblocks = nn.ModuleList(Block(width, 2, 32) for _ in range(layers))
    return tower


class OpenClip(nn.Module):
    """With the sizes of `tiny_clip.clip_model`."""

    def __init__(self, words, ends, *, width=16, layers=2, side=32, patch=8, shared=16):
        super().__init__()
        self.ends = ends
        self.visual = nn.Module()
        self.visual.conv1 = nn.Conv2d(3, width, patch, stride=patch, bias=False)
        self.visual.class_embedding = nn.Parameter(torch.randn(width))
        self.visual.positional_embedding = nn.Parameter(
            torch.randn((side // patch) ** 2 + 1, width)
        )
        self.visual.ln_pre, self.visual.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        self.visual.transformer = stack(width, layers)
        self.visual.proj = nn.Parameter(torch.randn(width, shared))
        self.token_embedding = nn.Embedding(words, width)
        self.positional_embedding = nn.Parameter(torch.randn(77, width))
        self.transformer = stack(width, layers)
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.randn(width, shared))
        self.logit_scale = nn.Parameter(torch.tensor(3.0))
        self.register_buffer("attn_mask", torch.full((77, 77), -torch.inf).triu(1))

    def see(self, pictures):
        """[N, 3, side, side] -> [N, shared]"""
        patches = self.visual.conv1(pictures).flatten(2).mT
        first = self.visual.class_embedding.expand(len(patches), 1, -1)
        x = self.visual.ln_pre(torch.cat([first, patches], 1) + self.visual.positional_embedding)
        for block in self.visual.transformer.resblocks:
            x = block(x)
        return F.normalize(self.visual.ln_post(x[:, 0]) @ self.visual.proj, dim=-1)

    def read(self, ids):
        """[N, 77] -> [N, shared]"""
        x = self.token_embedding(ids) + self.positional_embedding
        for block in self.transformer.resblocks:
            x = block(x, self.attn_mask)
        last = (ids == self.ends).int().argmax(1)
        ended = self.ln_final(x)[torch.arange(len(ids)), last]
        return F.normalize(ended @ self.text_projection, dim=-1)
