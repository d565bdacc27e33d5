"""What test_lora runs on two ranks: `… <folder of a run>`, trained from its log to the end."""

import sys
from pathlib import Path

import torch.distributed as dist

from rlbook.scale.config import load_config
from rlbook.scale.layout import Layout
from rlbook.scale.process import die_with_parent
from rlbook.scale.train.trainer import ScaleTrainer

if __name__ == "__main__":
    die_with_parent()
    layout = Layout(Path(sys.argv[1]))
    ScaleTrainer(layout, load_config(layout.config)).run()
    dist.destroy_process_group()
