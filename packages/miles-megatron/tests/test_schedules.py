import math

import pytest

from miles_megatron.schedules import ScheduleConfig, learning_rate


def rates(count, **settings):
    return [learning_rate(0.8, update, schedule=ScheduleConfig(**settings)) for update in range(count)]


def test_warm_up_rises_in_equal_steps_and_then_stays():
    assert rates(6, warmup_updates=4) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


def test_linear_falls_to_its_end_and_stays_there():
    found = rates(8, kind="linear", warmup_updates=2, total_updates=6, final_fraction=0.5)
    assert found == pytest.approx([0.4, 0.8, 0.8, 0.7, 0.6, 0.5, 0.4, 0.4])


def test_cosine_is_half_way_in_the_middle():
    found = rates(9, kind="cosine", total_updates=8)
    assert found[0] == 0.8
    assert found[2] == pytest.approx(0.8 * (1 + math.cos(math.pi / 4)) / 2)
    assert found[4] == pytest.approx(0.4)
    assert found[8] == pytest.approx(0.0, abs=1e-16)


def test_a_decay_without_an_end_is_refused():
    for total in (None, 5):
        with pytest.raises(ValueError, match="needs total_updates above warmup_updates = 5"):
            ScheduleConfig(kind="cosine", warmup_updates=5, total_updates=total)
