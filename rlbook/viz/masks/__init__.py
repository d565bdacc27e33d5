"""The mask lab: which tokens still learn, under every method. `mask_lab` and `mask_atlas`."""

from rlbook.viz.masks.atlas import mask_atlas
from rlbook.viz.masks.lab import MaskLab, mask_lab
from rlbook.viz.masks.rules import MASKS, Mask

__all__ = ["MASKS", "Mask", "MaskLab", "mask_atlas", "mask_lab"]
