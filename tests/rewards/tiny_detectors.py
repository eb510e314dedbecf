"""Small random detectors in the hub's format, with their processors."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch


def widen(model):
    """Scale weights so that images and words give different results."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


# COCO's 80 classes with MMDetection's names, as in facebook/mask2former-swin-small-coco-instance.
COCO = (
    "person bicycle car motorbike aeroplane bus train truck boat traffic_light fire_hydrant "
    "stop_sign parking_meter bench bird cat dog horse sheep cow elephant bear zebra giraffe "
    "backpack umbrella handbag tie suitcase frisbee skis snowboard sports_ball kite baseball_bat "
    "baseball_glove skateboard surfboard tennis_racket bottle wine_glass cup fork knife spoon bowl "
    "banana apple sandwich orange broccoli carrot hot_dog pizza donut cake chair sofa pottedplant "
    "bed diningtable toilet tvmonitor laptop mouse remote keyboard cell_phone microwave oven "
    "toaster sink refrigerator book clock vase scissors teddy_bear hair_drier toothbrush"
)
COCO = tuple(name.replace("_", " ") for name in COCO.split())


def write_mask2former(folder: Path, names: Sequence[str] = ("cat", "dog", "mouse")) -> Path:
    """A Mask2Former of Swin blocks with these class names."""
    from transformers import (
        Mask2FormerConfig,
        Mask2FormerForUniversalSegmentation,
        Mask2FormerImageProcessorPil,
        SwinConfig,
    )

    torch.manual_seed(0)
    swin = SwinConfig(
        image_size=64, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 1, 1], window_size=2,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = Mask2FormerConfig(
        backbone_config=swin, feature_size=32, mask_feature_size=32, hidden_dim=32,
        encoder_feedforward_dim=16, encoder_layers=1, decoder_layers=2, num_attention_heads=2,
        dim_feedforward=16, num_queries=6, id2label=dict(enumerate(names)),
        label2id={name: number for number, name in enumerate(names)},
    )  # fmt: skip
    widen(Mask2FormerForUniversalSegmentation(config)).save_pretrained(folder)
    size = {"height": 64, "width": 64}
    Mask2FormerImageProcessorPil(size=size, num_labels=len(names)).save_pretrained(folder)
    return folder


def write_owl(folder: Path) -> Path:
    """An OWL-ViT for images of 32 x 32 pixels, with letters as its text prompts."""
    from tiny_clip import clip_tokenizer
    from transformers import (
        OwlViTConfig,
        OwlViTForObjectDetection,
        OwlViTImageProcessorPil,
        OwlViTProcessor,
    )

    torch.manual_seed(0)
    tokenizer = clip_tokenizer()
    layers = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    layers["num_attention_heads"] = 2
    text = {**layers, "vocab_size": len(tokenizer), "max_position_embeddings": 16}
    text |= {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    vision = {**layers, "image_size": 32, "patch_size": 8}
    config = OwlViTConfig(text_config=text, vision_config=vision, projection_dim=16)
    widen(OwlViTForObjectDetection(config)).save_pretrained(folder)
    tokenizer.model_max_length = 16
    images = OwlViTImageProcessorPil(size={"height": 32, "width": 32})
    OwlViTProcessor(image_processor=images, tokenizer=tokenizer).save_pretrained(folder)
    return folder


def write_grounding_dino(folder: Path) -> Path:
    """A Grounding DINO with Swin blocks and a BERT that reads letters."""
    from transformers import (
        BertConfig,
        BertTokenizer,
        GroundingDinoConfig,
        GroundingDinoForObjectDetection,
        GroundingDinoImageProcessorPil,
        GroundingDinoProcessor,
        SwinConfig,
    )

    torch.manual_seed(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    known = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        ".",
        *letters,
        *(f"##{x}" for x in letters),
    ]
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(known)})
    swin = SwinConfig(
        image_size=64, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 1, 1], window_size=2,
        out_indices=[2, 3, 4],
    )  # fmt: skip
    bert = BertConfig(
        vocab_size=len(known), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=64,
    )  # fmt: skip
    config = GroundingDinoConfig(
        backbone_config=swin, text_config=bert, num_queries=5, encoder_layers=1, decoder_layers=2,
        encoder_ffn_dim=16, decoder_ffn_dim=16, encoder_attention_heads=2,
        decoder_attention_heads=2, d_model=32, num_feature_levels=4, max_text_len=32,
    )  # fmt: skip
    widen(GroundingDinoForObjectDetection(config)).save_pretrained(folder)
    images = GroundingDinoImageProcessorPil(size={"height": 128, "width": 128})
    GroundingDinoProcessor(image_processor=images, tokenizer=tokenizer).save_pretrained(folder)
    return folder


write_coco = partial(write_mask2former, names=COCO)
