"""The mask lab: which tokens still learn, under every method."""

from workshop.figures.masks.lab import MaskLab, mask_lab
from workshop.figures.masks.rules import MASKS, Mask

__all__ = ["MASKS", "Mask", "MaskLab", "mask_lab"]
