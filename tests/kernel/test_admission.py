from __future__ import annotations

import pytest

from spl.errors import AdmissionCeiling
from spl.kernel.admission import Admission, from_memory

GIB = 1 << 30


@pytest.mark.claim("A1")
@pytest.mark.parametrize(
    ("total", "each", "capacity"),
    [(8 * GIB, GIB, 4), (GIB, GIB, 1), (0, GIB, 1), (1024 * GIB, GIB, 16), (5 * GIB, 2 * GIB, 1)],
)
def test_workers_at_their_limit_fill_at_most_half_of_the_host(total: int, each: int, capacity: int) -> None:
    assert from_memory(total, each) == capacity


@pytest.mark.claim("A1", "A2")
def test_a_start_past_the_ceiling_is_refused_with_both_numbers() -> None:
    admission = Admission(2)
    slots = [admission.take(), admission.take()]
    with pytest.raises(AdmissionCeiling, match="all 2 places") as error:
        admission.take()
    assert error.value.fields == {"admission_capacity": 2, "admission_available": 0, "retry_after_secs": 1}
    slots[0].release()
    assert admission.available == 1
    admission.take()


@pytest.mark.claim("A3")
def test_a_slot_is_given_back_once_however_often_it_is_released() -> None:
    admission = Admission(2)
    slot = admission.take()
    slot.release()
    slot.release()
    assert (admission.capacity, admission.available) == (2, 2)
