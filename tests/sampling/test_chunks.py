from hypothesis import given
from hypothesis import strategies as st

from jaxsearchrl.sampling.chunks import calls_of


def chunks_of(slots):
    return [(slot, place, []) for place, slot in enumerate(slots)]


def test_by_hand():
    one, two, three, four = chunks_of([5, 5, 5, 6])
    assert calls_of([one, two, three, four], 2, apart=False) == [[one, two], [three, four]]
    assert calls_of([one, two, three, four], 2, apart=True) == [[one, four], [two], [three]]
    assert calls_of([], 2, apart=True) == []


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(1, 4), st.booleans())
def test_each_chunk_stands_in_the_first_call_that_its_slot_allows(slots, size, apart):
    calls: list[list] = []
    for chunk in chunks_of(slots):
        before = [number for number, call in enumerate(calls) if chunk[0] in [slot for slot, _, _ in call]]
        least = (before[-1] + apart) if before else 0
        number = next((n for n in range(least, len(calls)) if len(calls[n]) < size), len(calls))
        calls[number : number + 1] = [[*(calls[number] if number < len(calls) else []), chunk]]
    assert calls_of(chunks_of(slots), size, apart=apart) == calls
