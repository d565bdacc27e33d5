"""Faults put into the trainer on purpose, and how many of them `rlbook.doctor` names."""
