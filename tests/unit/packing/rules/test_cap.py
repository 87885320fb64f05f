import pytest
from packing_values import estimate

from slurm_share.packing.rules.cap import at_start


def cap(size, reserve=8000, room=30000, **fields):
    return at_start(size, reserve, room, **{"guard": "soft", "is_mps": True, "is_alone": False, **fields})


@pytest.mark.parametrize(
    ("size", "fields", "expected"),
    [
        (estimate(8000), {}, 10000),  # a quarter more
        (estimate(2000), {"reserve": 2000}, 3024),  # 1 GiB more, where that is more
        (estimate(8000), {"room": 9000}, 9000),  # what the GPU has
        (estimate(8000), {"room": 8000}, 8000),
        (estimate(8000), {"guard": "hard"}, 8000),
        (estimate(8000, "user"), {}, 8000),
        (estimate(None), {}, 30000),  # its share is a guess, so it may take what is free
        (None, {}, 30000),
        (None, {"guard": "hard"}, 8000),
        (estimate(8000, is_elastic=True), {}, 8000),
        (estimate(8000, processes=4), {}, 2500),  # MPS limits each process
        (estimate(8000, processes=100), {"guard": "hard"}, 300),
        (estimate(8000), {"is_mps": False}, None),
        (estimate(8000), {"is_alone": True}, None),
    ],
)
def test_cap(size, fields, expected):
    assert cap(size, **fields) == expected
