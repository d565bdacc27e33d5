"""What an answer can be worth besides the verifier's word: functions of rollouts, one seam."""
