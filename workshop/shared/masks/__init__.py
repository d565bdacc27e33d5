"""Which tokens still learn, under every method: the mask lab, and the atlas of all tokens."""

from workshop.shared.masks.atlas import finding, mask_atlas
from workshop.shared.masks.lab import MaskLab, mask_lab
from workshop.shared.masks.rules import MASKS, Mask

__all__ = ["MASKS", "Mask", "MaskLab", "finding", "mask_atlas", "mask_lab"]
