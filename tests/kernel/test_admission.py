from __future__ import annotations

import pytest

from spl.errors import AdmissionCeiling
from spl.kernel.admission import Admission, Slot

ANA, BEN, CAT = "did:sync:user:ana", "did:sync:user:ben", "did:sync:user:cat"
MIB = 1 << 20
GIB = 1 << 30


def by_memory(memory: int) -> Admission:
    return Admission(memory, lambda: None)


def fixed(capacity: int) -> Admission:
    return Admission(0, lambda: capacity)


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
    slots = [admission.take(each, f"{ANA}{number}") for number in range(capacity)]
    assert admission.available(each) == 0
    with pytest.raises(AdmissionCeiling):
        admission.take(each, ANA)
    for slot in slots:
        slot.release()
    assert admission.available(each) == capacity


@pytest.mark.claim("A1")
def test_runs_of_different_profiles_fill_half_of_the_memory_together() -> None:
    admission = by_memory(8 * GIB)
    large = admission.take(3 * GIB, ANA)
    assert (admission.capacity(3 * GIB), admission.available(3 * GIB)) == (1, 0)
    assert (admission.capacity(GIB), admission.available(GIB)) == (4, 1)
    admission.take(512 * MIB, ANA)
    with pytest.raises(AdmissionCeiling) as error:
        admission.take(GIB, ANA)
    assert error.value.fields["admission_capacity"] == 4
    large.release()
    assert admission.available(GIB) == 3


@pytest.mark.claim("A1")
def test_what_fits_beside_the_runs_is_told_for_all_sizes_together_and_takes_no_place() -> None:
    admission = Admission(12, lambda: None)
    admission.take(2, ANA)
    for sizes, fits in (
        ([], True),
        ([4], True),
        ([1, 3], True),
        ([3, 1], True),
        ([5], False),
        ([2, 3], False),
    ):
        assert admission.fits(sizes) is fits, sizes
    assert admission.taken == 1
    few = Admission(0, lambda: 3)
    few.take(2, ANA)
    assert (few.fits([9, 9]), few.fits([1, 1, 1])) == (True, False)


@pytest.mark.claim("A1", "A2")
def test_a_start_past_the_ceiling_is_refused_with_both_numbers() -> None:
    admission = fixed(2)
    slots = [admission.take(GIB, ANA), admission.take(GIB, ANA)]
    with pytest.raises(AdmissionCeiling, match="at most 2 of this profile") as error:
        admission.take(GIB, ANA)
    assert error.value.fields == {"admission_capacity": 2, "admission_available": 0, "retry_after_secs": 1}
    slots[0].release()
    assert admission.available(GIB) == 1
    admission.take(GIB, ANA)


@pytest.mark.claim("A1")
def test_a_capacity_that_was_set_goes_before_the_memory_and_back() -> None:
    capacity: int | None = 3
    admission = Admission(2 * GIB, lambda: capacity)
    slots = [admission.take(GIB, ANA) for _ in range(3)]
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
        fixed(0).take(GIB, ANA)
    assert "set-capacity" in str(error.value.fields["remedy"])
    with pytest.raises(AdmissionCeiling, match=r"may take 1024 MiB, and half .* is 512 MiB") as error:
        by_memory(GIB).take(GIB, ANA)
    assert error.value.fields["admission_capacity"] == error.value.fields["admission_available"] == 0
    assert error.value.fields["retry_after_secs"] == 1


@pytest.mark.claim("A3")
def test_a_slot_is_given_back_once_however_often_it_is_released() -> None:
    admission = fixed(2)
    slot = admission.take(GIB, ANA)
    admission.take(GIB, ANA)
    slot.release()
    slot.release()
    assert (admission.capacity(GIB), admission.available(GIB)) == (2, 1)


def test_no_more_runs_than_the_host_has_uids_whatever_was_set() -> None:
    capacity: int | None = 4096
    admission = Admission(1024 * GIB, lambda: capacity, most=2)

    slots = [admission.take(1, ANA), admission.take(1, ANA)]
    with pytest.raises(AdmissionCeiling) as caught:
        admission.take(1, ANA)
    assert (caught.value.fields["admission_capacity"], admission.available(1)) == (2, 0)
    slots[0].release()
    capacity = None
    assert (admission.capacity(1), admission.available(1)) == (2, 1)


# --- whose a place is that comes free ---


class Clock:
    """Seconds that pass when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def places(capacity: int, clock: Clock) -> Admission:
    return Admission(0, lambda: capacity, now=clock)


def gets(admission: Admission, actor: str, *, first: bool = False) -> Slot | None:
    """Have an actor ask for a place; gives it, or None where it is refused."""
    try:
        return admission.take(GIB, actor, first=first)
    except AdmissionCeiling:
        return None


@pytest.mark.claim("A1")
def test_a_free_place_is_kept_for_whoever_was_refused_before_the_one_who_asks(clock: Clock) -> None:
    admission = places(1, clock)
    slot = admission.take(GIB, ANA)
    for actor in (BEN, CAT, ANA):
        assert gets(admission, actor) is None
        clock.now += 0.1
    for order in ((ANA, CAT, BEN), (ANA, CAT)):
        slot.release()
        *after, next_ = order
        assert [gets(admission, actor) for actor in after] == [None] * len(after)
        found = gets(admission, next_)
        assert found is not None
        slot = found


@pytest.mark.claim("A1")
def test_no_number_of_starts_keeps_another_actor_out(clock: Clock) -> None:
    admission = places(3, clock)
    held = [admission.take(GIB, ANA) for _ in range(3)]
    assert (gets(admission, BEN), gets(admission, CAT)) == (None, None)
    for actor in (BEN, CAT):
        held.pop().release()
        assert [gets(admission, ANA) for _ in range(20)] == [None] * 20
        clock.now += 1
        assert gets(admission, actor) is not None
    # Nobody else waits now: what comes free is anyone's again.
    held.pop().release()
    assert gets(admission, ANA) is not None


@pytest.mark.claim("A1")
def test_who_holds_fewer_goes_before_who_asked_earlier(clock: Clock) -> None:
    admission = places(3, clock)
    slots = [admission.take(GIB, actor) for actor in (ANA, ANA, BEN)]
    assert gets(admission, ANA) is None
    clock.now += 1
    assert gets(admission, CAT) is None
    slots[2].release()
    assert gets(admission, ANA) is None
    assert gets(admission, CAT) is not None


@pytest.mark.claim("A1")
def test_a_place_is_kept_no_longer_than_for_an_actor_that_comes_again(clock: Clock) -> None:
    admission = places(1, clock)
    slot = admission.take(GIB, ANA)
    assert gets(admission, BEN) is None
    slot.release()
    clock.now += 3
    assert gets(admission, ANA) is None
    clock.now += 0.1
    assert gets(admission, ANA) is not None


@pytest.mark.claim("A1", "A2")
def test_a_refusal_for_anothers_sake_says_so_with_both_numbers(clock: Clock) -> None:
    admission = places(1, clock)
    slot = admission.take(GIB, ANA)
    assert gets(admission, BEN) is None
    clock.now += 1
    slot.release()
    with pytest.raises(AdmissionCeiling, match="kept for others") as error:
        admission.take(GIB, ANA)
    assert error.value.fields == {"admission_capacity": 1, "admission_available": 1, "retry_after_secs": 1}
    # To be told what a start would meet is not to wait for a place.
    assert admission.refusal(GIB, CAT) is not None
    assert gets(admission, BEN) is not None


@pytest.mark.claim("A1")
def test_the_operator_goes_before_all_who_wait(clock: Clock) -> None:
    admission = places(2, clock)
    slots = [admission.take(GIB, "the operator", first=True) for _ in range(2)]
    assert gets(admission, BEN) is None
    clock.now += 1
    assert gets(admission, "the operator", first=True) is None
    slots.pop().release()
    assert gets(admission, BEN) is None
    assert gets(admission, "the operator", first=True) is not None
    slots.pop().release()
    assert gets(admission, BEN) is not None


@pytest.mark.claim("A1")
def test_a_place_is_kept_for_a_large_run_until_there_is_room_for_it(clock: Clock) -> None:
    admission = Admission(8 * GIB, lambda: None, now=clock)
    slots = [admission.take(GIB, f"{ANA}{number}") for number in range(4)]
    with pytest.raises(AdmissionCeiling):
        admission.take(2 * GIB, BEN)
    clock.now += 1
    slots.pop().release()
    assert gets(admission, CAT) is None
    slots.pop().release()
    assert gets(admission, CAT) is None
    admission.take(2 * GIB, BEN)
