"""The mask lab: which tokens still learn, under every method."""

from rlbook.viz.masks.lab import MaskLab, mask_lab
from rlbook.viz.masks.rules import MASKS, Mask

__all__ = ["MASKS", "Mask", "MaskLab", "mask_lab"]
