"""Strikes at a real run at random moments and looks whether anything is lost.

`python -m workshop.chaos configs/cpu-tiny.yaml --seed 0 --minutes 10`: what is done to it is in
`faults`, what must hold afterwards in `promises`. The seed decides who is struck after how long;
what the machine makes of that differs from time to time.

With `generate.engine=vllm` the engines behind the servers are struck as well. Two servers are then
wise: one takes half a minute to start, and the run would stand still meanwhile.
"""
