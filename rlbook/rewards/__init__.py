"""What an answer can be worth besides the verifier's word: functions of rollouts, one seam."""

from rlbook.rewards.dpo import *
from rlbook.rewards.judges import *
from rlbook.rewards.kl_reward import *
from rlbook.rewards.label_free import *
from rlbook.rewards.length import *
from rlbook.rewards.preferences import *
from rlbook.rewards.process import *
from rlbook.rewards.reward_model import *
from rlbook.rewards.teacher import *
