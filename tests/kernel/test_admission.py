from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spl.errors import AdmissionCeiling
from spl.kernel.admission import Admission, available_memory

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
GIB = 1 << 30

MEMINFO = """MemTotal:       16314360 kB
MemFree:          309612 kB
MemAvailable:    8388608 kB
Buffers:          131072 kB
"""


def by_memory(memory: int) -> Admission:
    return Admission(memory, lambda: None)


def fixed(capacity: int) -> Admission:
    return Admission(0, lambda: capacity)


@pytest.mark.claim("A1")
def test_what_is_available_is_what_the_kernel_says_without_swapping(tmp_path: Path) -> None:
    planted = tmp_path / "meminfo"
    planted.write_text(MEMINFO)
    assert available_memory(str(planted)) == 8 * GIB
    assert available_memory() > 0


@pytest.mark.claim("A1")
@pytest.mark.parametrize("said", ["", "MemFree: 5 kB\n", "MemAvailable: 5\n", "MemAvailable: x kB\n"])
def test_a_kernel_that_does_not_say_what_is_available_is_no_memory(tmp_path: Path, said: str) -> None:
    planted = tmp_path / "meminfo"
    planted.write_text(said)
    with pytest.raises(ValueError, match=r"meminfo|invalid literal"):
        available_memory(str(planted))


@pytest.mark.claim("A1")
@pytest.mark.parametrize(
    ("memory", "each", "capacity"),
    [
        (8 * GIB, GIB, 4),
        (2 * GIB, GIB, 1),
        (2 * GIB - 1, GIB, 0),
        (0, GIB, 0),
        (5 * GIB, 2 * GIB, 1),
        (1 << 50, GIB, 128),
    ],
)
def test_workers_at_their_limit_fill_at_most_half_of_what_was_available(
    memory: int, each: int, capacity: int
) -> None:
    admission = by_memory(memory)
    assert admission.capacity(each) == admission.available(each) == capacity
    slots = [admission.take(each) for _ in range(capacity)]
    assert admission.available(each) == 0
    with pytest.raises(AdmissionCeiling):
        admission.take(each)
    for slot in slots:
        slot.release()
    assert admission.available(each) == capacity


@pytest.mark.claim("A1")
def test_runs_of_different_profiles_fill_half_of_the_memory_together(tmp_path: Path) -> None:
    admission = by_memory(8 * GIB)
    large = admission.take(3 * GIB)
    assert (admission.capacity(3 * GIB), admission.available(3 * GIB)) == (1, 0)
    assert (admission.capacity(GIB), admission.available(GIB)) == (4, 1)
    admission.take(512 * MIB)
    with pytest.raises(AdmissionCeiling) as error:
        admission.take(GIB)
    assert error.value.fields["admission_capacity"] == 4
    large.release()
    assert admission.available(GIB) == 3


@pytest.mark.claim("A1", "A2")
def test_a_start_past_the_ceiling_is_refused_with_both_numbers() -> None:
    admission = fixed(2)
    slots = [admission.take(GIB), admission.take(GIB)]
    with pytest.raises(AdmissionCeiling, match="at most 2 of this profile") as error:
        admission.take(GIB)
    assert error.value.fields == {"admission_capacity": 2, "admission_available": 0, "retry_after_secs": 1}
    slots[0].release()
    assert admission.available(GIB) == 1
    admission.take(GIB)


@pytest.mark.claim("A1")
def test_a_capacity_that_was_set_goes_before_the_memory_and_back() -> None:
    capacity: int | None = 3
    admission = Admission(2 * GIB, lambda: capacity)
    slots = [admission.take(GIB) for _ in range(3)]
    # What is set lower leaves those that run alone, and admits none until they are fewer.
    capacity = 1
    assert (admission.capacity(GIB), admission.available(GIB)) == (1, 0)
    slots.pop().release()
    slots.pop().release()
    assert admission.available(GIB) == 0
    slots.pop().release()
    assert admission.available(GIB) == 1
    capacity = None
    assert admission.capacity(GIB) == 1
    capacity = 7
    assert admission.available(GIB) == 7


@pytest.mark.claim("A1", "A2")
def test_a_ceiling_of_nothing_says_what_to_do_about_it() -> None:
    with pytest.raises(AdmissionCeiling, match="is set to 0") as error:
        fixed(0).take(GIB)
    assert "set-capacity" in str(error.value.fields["remedy"])
    with pytest.raises(AdmissionCeiling, match=r"may take 1024 MiB, and half .* is 512 MiB") as error:
        by_memory(GIB).take(GIB)
    assert error.value.fields["admission_capacity"] == error.value.fields["admission_available"] == 0
    assert error.value.fields["retry_after_secs"] == 1


@pytest.mark.claim("A3")
def test_a_slot_is_given_back_once_however_often_it_is_released() -> None:
    admission = fixed(2)
    slot = admission.take(GIB)
    admission.take(GIB)
    slot.release()
    slot.release()
    assert (admission.capacity(GIB), admission.available(GIB)) == (2, 1)


def test_no_more_runs_than_the_host_has_uids_whatever_was_set() -> None:
    capacity: int | None = 4096
    admission = Admission(1024 * GIB, lambda: capacity, most=2)

    slots = [admission.take(1), admission.take(1)]
    with pytest.raises(AdmissionCeiling) as caught:
        admission.take(1)
    assert (caught.value.fields["admission_capacity"], admission.available(1)) == (2, 0)
    slots[0].release()
    capacity = None
    assert (admission.capacity(1), admission.available(1)) == (2, 1)
