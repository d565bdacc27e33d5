"""The mask lab: which tokens still learn, under every method."""

from workshop.shared.masks.lab import MaskLab, mask_lab
from workshop.shared.masks.rules import MASKS, Mask

__all__ = ["MASKS", "Mask", "MaskLab", "mask_lab"]
