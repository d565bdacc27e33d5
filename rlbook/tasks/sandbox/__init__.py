"""Scorers in a process of their own, with a time limit."""
