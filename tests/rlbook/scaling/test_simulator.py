from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlbook.scaling.simulator import (
    Cluster,
    Lengths,
    Schedule,
    ceilings,
    generate_then_update,
    pipeline_rl,
    ppo_off_policy,
    simulate,
)

ONE = Cluster(generators=1, trainers=1, slots=1, decode_fixed=1.0)
TAILED = Lengths(mean=40, sigma=1.0, max_tokens=150)
BUSY = Cluster(
    generators=6,
    trainers=2,
    slots=8,
    decode_fixed=1.0,
    decode_per_sequence=0.05,
    update_fixed=2.0,
    update_per_token=0.02,
    sync=1.0,
)

schedules = st.one_of(
    st.just(generate_then_update()),
    st.integers(1, 4).map(ppo_off_policy),
    st.integers(0, 5).map(pipeline_rl),
    st.integers(0, 3).map(lambda target: pipeline_rl(target + 2, target)),
    st.builds(lambda p, a: Schedule("general", p, a, True), st.integers(1, 3), st.integers(0, 4)),
)


def shape(**costs) -> Cluster:
    return Cluster(**{"generators": 1, "trainers": 1, "slots": 1, "decode_fixed": 1.0, **costs})


# Solved by hand


def test_one_of_each_takes_turns():
    """10 s of generation, 4 s of update, 1 s of sync; each side waits for the other."""
    run = simulate(generate_then_update(), shape(update_fixed=4, sync=1), [10], 1, updates=3)
    assert run.clock.tolist() == [0, 15, 30, 45]
    assert run.generator_idle == pytest.approx(4 / 15)
    assert run.trainer_idle == pytest.approx(10 / 15)
    assert run.sync_share == pytest.approx(1 / 15)
    assert run.occupancy == pytest.approx(10 / 15)
    assert run.tokens_per_second == pytest.approx(10 / 15)
    assert run.completions_per_second == pytest.approx(1 / 15)
    assert run.staleness_shares.tolist() == [1] and run.mean_staleness == 0


def test_two_slots_four_completions_two_rounds():
    run = simulate(generate_then_update(), shape(slots=2, update_per_token=0.1), [5], 4, updates=2)
    assert run.clock.tolist() == [0, 12, 24]
    assert run.started.tolist() == [0, 0, 5, 5, 12, 12, 17, 17]
    assert run.finished.tolist() == [5, 5, 10, 10, 17, 17, 22, 22]


def test_one_long_completion_empties_everybody_else():
    """Lengths 1, 1, 1, 7 on two generators of two slots: the second waits for nobody, 6 s long."""
    run = simulate(generate_then_update(), shape(generators=2, slots=2), [1, 1, 1, 7], 4, updates=1)
    assert run.clock.tolist() == [0, 7]
    assert run.generator_idle == pytest.approx(6 / 14)
    assert run.occupancy == pytest.approx(10 / 28)
    assert run.trainer_idle == 1


def test_a_lonely_completion_is_written_faster():
    """3 s a step for two, 2 s for one: 2 · 3 = 6 s, then 2 more tokens in 4 s."""
    cluster = shape(slots=2, decode_per_sequence=1.0)
    assert simulate(generate_then_update(), cluster, [2, 4], 2, 1).finished.tolist() == [6, 10]


def test_a_group_is_trained_when_its_last_completion_is_there():
    """Two groups of (2, 6) on two slots: the second one starts while the first is being written."""
    run = simulate(pipeline_rl(1), shape(slots=2), [2, 6], batch=2, updates=2, group_size=2)
    assert run.started.tolist() == [0, 0, 2, 4]
    assert run.finished.tolist() == [2, 6, 4, 10]
    assert run.clock.tolist() == [0, 6, 10]
    alone = simulate(pipeline_rl(1), shape(slots=2), [2, 6], batch=2, updates=2)
    assert alone.clock.tolist() == [0, 4, 10]  # the two that are finished first


def test_off_policy_generates_k_batches_then_makes_k_updates():
    run = simulate(ppo_off_policy(3), shape(update_fixed=4, sync=2), [10], 1, updates=6)
    assert run.clock.tolist() == [0, 34, 38, 44, 78, 82, 88]
    assert run.first_version.tolist() == run.last_version.tolist() == [0, 0, 0, 3, 3, 3]
    assert run.start_staleness.tolist() == [0, 1, 2, 0, 1, 2]
    np.testing.assert_allclose(run.staleness_shares, 1 / 3)
    assert run.generator_idle == pytest.approx(12 / 44)


def test_pipeline_with_slow_generator():
    """Weights come 4 s into each 10 s completion: 4 of its tokens are one update old."""
    run = simulate(pipeline_rl(4), shape(update_fixed=4), [10], 1, updates=20, warmup=1)
    assert (np.diff(run.clock)[1:] == 10).all()
    assert run.generator_idle == 0 and run.occupancy == pytest.approx(1)
    assert run.trainer_idle == pytest.approx(0.6)
    np.testing.assert_allclose(run.staleness_shares, [0.6, 0.4, 0, 0, 0])
    assert set(run.start_staleness) == {1} and set(run.end_staleness) == {0}


def test_pipeline_with_slow_trainer_runs_into_its_bound():
    for k in (1, 2, 3):
        run = simulate(pipeline_rl(k), shape(update_fixed=10), [4], 1, updates=20, warmup=5)
        assert (np.diff(run.clock)[5:] == 10).all()
        assert run.trainer_idle == 0
        assert run.generator_idle == pytest.approx(0.6)
        assert set(run.start_staleness) == set(run.end_staleness) == {k}


def test_sync_halts_a_completion_but_loses_nothing():
    run = simulate(pipeline_rl(4), shape(update_fixed=4, sync=3), [10], 1, updates=20, warmup=1)
    assert (np.diff(run.clock)[1:] == 13).all()
    assert run.sync_share == pytest.approx(3 / 13)
    assert run.generator_idle == pytest.approx(0)
    np.testing.assert_allclose(run.staleness_shares, [0.6, 0.4, 0, 0, 0])


def test_oldest_staleness_is_generation_time_over_update_time():
    """g_max = ⌈t_gen / t_train⌉ (PipelineRL, section 4), with starts spread evenly over time.

    Ten slots on as many generators, 100 tokens each; the first round is shorter by turns. One
    completion ends every 10 s, and after each of them comes an update.
    """
    lengths = [*range(10, 101, 10), *[100] * 300]
    run = simulate(pipeline_rl(50), shape(generators=10, update_fixed=5), lengths, 1, 200, 50)
    assert set(run.start_staleness) == {100 // 10}
    assert set(run.end_staleness) == {0}
    np.testing.assert_allclose(run.staleness_shares[:11], [0.05, *[0.1] * 9, 0.05])


def test_a_trainer_waits_for_the_one_completion_that_would_get_too_old():
    """Short ones would fill three batches while the first, 100 tokens long, is being written."""
    lengths = [100, *[10] * 60]
    for k in (1, 2, 3):
        run = simulate(pipeline_rl(k), shape(generators=2, update_fixed=1), lengths, 1, updates=8)
        assert run.start_staleness.max() == k == run.trained_version[0]
        assert run.clock[k] < 100 < run.clock[k + 1]


@pytest.mark.parametrize("target", [1, 2, 5])
def test_with_a_fast_generator_tokens_are_as_old_as_the_target(target):
    """10 s of generation against updates of 20 s: the bound of 5 is never reached but as target."""
    run = simulate(pipeline_rl(5, target), shape(slots=9, update_fixed=20), [10], 1, 20, warmup=10)
    assert run.mean_staleness == pytest.approx(target)
    assert run.trainer_idle == pytest.approx(0)
    assert run.schedule.max_staleness == 5


def test_with_a_target_what_is_slow_is_overtaken_up_to_the_bound():
    """One completion in seven takes 40 s, updates 5 s: the trainer need not wait for it."""
    lengths, cluster = [5, 5, 5, 40, 5, 5, 5], shape(slots=20, update_fixed=5)
    bounded, overtaken = (
        simulate(pipeline_rl(bound, 2), cluster, lengths, 1, 64, warmup=8) for bound in (2, 9)
    )
    assert overtaken.seconds < 0.8 * bounded.seconds
    assert bounded.start_staleness.max() == 2 < overtaken.start_staleness.max() <= 9


def test_no_staleness_allowed_is_generate_then_update():
    runs = [
        simulate(schedule, BUSY, TAILED, 32, 10)
        for schedule in (generate_then_update(), pipeline_rl(0))
    ]
    for name in ("clock", "started", "finished", "first_version", "trained_version"):
        np.testing.assert_array_equal(*(getattr(run, name) for run in runs))
    assert runs[0].start_staleness.max() == 0


# Against a simulation that does nothing but tick


def tick_by_tick(schedule, generators, slots, lengths, batch, size, update, sync, updates):
    """The same rules, one token at a time: for integer lengths, decode steps of 1 s.

    `batch` counts groups of `size` completions.
    """
    now, version, weights, begun = 0, 0, 0, 0
    on = [[] for _ in range(generators)]
    written, first, trained, clock, training = {}, {}, {}, [0], None

    def members(group):
        return range(group * size, (group + 1) * size)

    def finished(group):
        return all(i in written and len(written[i]) == lengths[i] for i in members(group))

    def admit():
        nonlocal begun
        while begun < schedule.batches(weights) * batch * size and min(map(len, on)) < slots:
            min(on, key=len).append(begun)
            written[begun], first[begun] = [], weights
            begun += 1

    def begin():
        nonlocal training
        waiting = [g for g in range(-(-begun // size)) if g not in trained]
        done = [group for group in waiting if finished(group)]
        if training is not None or len(done) < batch or (any(on) and not schedule.overlap):
            return
        rest = [group for group in waiting if group not in done[:batch]]
        for place, group in enumerate(rest):
            turn = version + 1 + place // batch
            if any(turn - first[i] > schedule.max_staleness for i in members(group) if i < begun):
                return
        trained.update(dict.fromkeys(done[:batch], version))
        training = now + update

    admit()
    while version < updates:
        now += 1
        for i in [i for generator in on for i in generator]:
            written[i].append(weights)
        for generator in on:
            unfinished = [i for i in generator if len(written[i]) < lengths[i]]
            if len(unfinished) < len(generator):
                generator[:] = unfinished
                admit()
        begin()
        while training == now and version < updates:
            version, training = version + 1, None
            if version % schedule.period == 0:
                now, weights = now + sync, version
                admit()
            clock.append(now)
            begin()
    lags = np.zeros(schedule.max_staleness + 1)
    counted = [i for g in sorted(trained) if trained[g] < updates for i in members(g)]
    for i in counted:
        for w in written[i]:
            lags[trained[i // size] - w] += 1
    return clock, [first[i] for i in counted], [trained[i // size] for i in counted], lags


@settings(max_examples=80, deadline=None)
@given(
    schedule=schedules,
    generators=st.integers(1, 3),
    slots=st.integers(1, 5),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=40),
    batch=st.integers(1, 5),
    size=st.integers(1, 3),
    update=st.integers(1, 8),
    sync=st.integers(0, 2),
)
def test_agrees_with_ticking(schedule, generators, slots, lengths, batch, size, update, sync):
    updates = 4 * schedule.period
    total = size * batch * (updates + schedule.period + schedule.ahead)
    total = np.resize(lengths, total).tolist()
    expected = tick_by_tick(schedule, generators, slots, total, batch, size, update, sync, updates)
    cluster = shape(generators=generators, slots=slots, update_fixed=update, sync=sync)
    run = simulate(schedule, cluster, lengths, batch * size, updates, group_size=size)
    assert run.clock.tolist() == expected[0]
    assert run.first_version.tolist() == expected[1]
    assert run.trained_version.tolist() == expected[2]
    np.testing.assert_allclose(run.tokens_by_staleness, expected[3], atol=1e-9)


# Bounds that hold whatever the numbers


@settings(max_examples=60, deadline=None)
@given(
    schedule=schedules,
    sigma=st.floats(0, 1.5),
    generators=st.integers(1, 8),
    slots=st.integers(1, 16),
    per_sequence=st.floats(0, 0.5),
    update=st.floats(0, 60),
    sync=st.floats(0, 10),
    batch=st.integers(1, 12),
    size=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_bounds(schedule, sigma, generators, slots, per_sequence, update, sync, batch, size, seed):
    batch *= size
    cluster = shape(
        generators=generators,
        slots=slots,
        decode_per_sequence=per_sequence,
        update_fixed=update,
        update_per_token=0.01,
        sync=sync,
    )
    updates = 3 * schedule.period
    run = simulate(schedule, cluster, Lengths(20, sigma, 60), batch, updates, 0, seed, size)

    assert (run.start_staleness <= schedule.max_staleness).all()
    assert (run.end_staleness >= 0).all() and (run.first_version <= run.last_version).all()
    together = run.trained_version.reshape(-1, size)
    assert (together == together[:, :1]).all()
    assert np.bincount(run.trained_version).tolist() == [batch] * updates
    assert run.tokens_by_staleness.sum() == pytest.approx(run.lengths.sum())
    assert (run.tokens_by_staleness >= 0).all()

    for share in (run.generator_idle, run.trainer_idle, run.occupancy, run.sync_share):
        assert -1e-9 <= share <= 1 + 1e-9
    assert run.training <= run.seconds * (1 + 1e-9)
    assert run.filled <= run.busy * slots * (1 + 1e-9)
    written = run.lengths.sum() + run.untrained_tokens
    assert written <= cluster.peak * run.seconds * (1 + 1e-9)

    seconds = run.finished - run.started
    assert (seconds >= run.lengths * cluster.decode_time(1) * (1 - 1e-9)).all()
    for update_number, (begin, end) in enumerate(zip(run.clock, run.clock[1:], strict=False)):
        mine = run.trained_version == update_number
        assert run.finished[mine].max() <= end
        assert end - begin >= cluster.update_time(run.lengths[mine].sum()) * (1 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(
    schedule=schedules,
    generators=st.integers(1, 6),
    slots=st.integers(1, 8),
    batch=st.integers(1, 12),
    length=st.integers(1, 30),
    update=st.floats(0, 30),
    sync=st.floats(0, 5),
)
def test_no_ceiling_is_broken(schedule, generators, slots, batch, length, update, sync):
    """Exactly, where all completions are equally long and whole rounds of staleness are counted."""
    cluster = shape(generators=generators, slots=slots, update_fixed=update, sync=sync)
    updates = 2 * (schedule.max_staleness + 1) * schedule.period
    run = simulate(schedule, cluster, Lengths(length), batch, updates)
    for ceiling in ceilings(schedule, cluster, Lengths(length), batch).values():
        assert run.tokens_per_second <= ceiling * (1 + 1e-9)


@pytest.mark.parametrize("schedule", [generate_then_update(), ppo_off_policy(4), pipeline_rl(4)])
def test_every_token_is_accounted_for(schedule):
    """With a load-independent step, filled slot-seconds are tokens: trained or still on the way."""
    cluster = shape(generators=3, slots=5, decode_fixed=0.5, update_fixed=20, sync=2)
    run = simulate(schedule, cluster, TAILED, 16, updates=12)
    assert run.filled / 0.5 == pytest.approx(run.lengths.sum() + run.untrained_tokens)
    assert (run.untrained_tokens > 0) == schedule.overlap or schedule.period == 1


def test_littles_law():
    """Completions in flight = rate × time in flight, in a pipeline that runs steadily."""
    run = simulate(pipeline_rl(8), replace(BUSY, sync=0), TAILED, 16, updates=300, warmup=60)
    in_flight = run.filled / run.seconds
    time = (run.finished - run.started).mean()
    assert in_flight == pytest.approx(run.completions_per_second * time, rel=0.01)


# Shapes of the results


def test_more_staleness_buys_throughput_until_the_generators_are_full():
    runs = [simulate(pipeline_rl(k), BUSY, TAILED, 48, 40, 10) for k in (0, 1, 2, 4, 8, 16)]
    speeds = [run.tokens_per_second for run in runs]
    assert (np.diff(speeds[:4]) > 0).all()
    assert speeds[-1] == pytest.approx(speeds[-2], rel=0.01)
    assert runs[-1].occupancy > 0.97 and runs[0].occupancy < 0.5


def test_long_tails_hurt_most_where_everybody_waits_for_them():
    cost = {}
    for schedule in (generate_then_update(), pipeline_rl(8)):
        even, tailed = (
            simulate(schedule, BUSY, Lengths(40, sigma), 48, 40, 10).tokens_per_second
            for sigma in (0.0, 1.0)
        )
        cost[schedule.name] = even / tailed
    assert cost["generate, then update"] > 2
    assert cost["PipelineRL-8"] < 1.2


# Lengths


@pytest.mark.parametrize(("sigma", "limit"), [(0.5, inf), (1.0, 2000), (1.0, 400), (0.0, 300)])
def test_length_statistics(sigma, limit):
    lengths = Lengths(500, sigma, limit)
    draws = lengths.sample(200_000)
    assert draws.mean() == pytest.approx(lengths.expected, rel=0.01)
    assert (draws == limit).mean() == pytest.approx(lengths.interrupted, abs=0.005)
    longest = draws.reshape(2000, 100).max(1)
    assert np.median(longest) == pytest.approx(lengths.longest(100), rel=0.25)
    np.testing.assert_array_equal(lengths.sample(10), draws[:10])
    assert not sigma or (lengths.sample(10, seed=1) != draws[:10]).any()


def test_same_seed_same_run():
    one, two, other = (simulate(pipeline_rl(4), BUSY, TAILED, 16, 9, seed=s) for s in (3, 3, 4))
    np.testing.assert_array_equal(one.clock, two.clock)
    assert one.summary() == two.summary() != other.summary()


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="at least one generator"):
        shape(generators=0)
    with pytest.raises(ValueError, match="not free"):
        shape(decode_fixed=0.0)
    with pytest.raises(ValueError, match="mean > 0"):
        Lengths(0)
    with pytest.raises(ValueError, match="overlap if ahead"):
        Schedule("x", ahead=2)
    with pytest.raises(ValueError, match="period >= 1"):
        ppo_off_policy(0)
    with pytest.raises(ValueError, match="multiple of the period 4"):
        simulate(ppo_off_policy(4), ONE, [1], 1, updates=6)
    with pytest.raises(ValueError, match="warmup < updates"):
        simulate(generate_then_update(), ONE, [1], 1, updates=2, warmup=2)
    with pytest.raises(ValueError, match="at least one token"):
        simulate(generate_then_update(), ONE, [0], 1, updates=2)
