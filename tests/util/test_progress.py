"""The estimate of a wait, with recorded waits: what was done at which second."""

from collections.abc import Callable

import pytest

from ropechat.util.progress import Estimate, Progress, Wait, Watch, format_rate
from ropechat.util.text import format_bytes, format_duration

Samples = tuple[tuple[float, int], ...]
# A prompt of 4,000 tokens, read by a model of the shape of stories15M: attention takes most of the time.
LONG_PROMPT = (
    (0.0, 0),
    (0.012, 85),
    (0.024, 170),
    (0.052, 256),
    (0.062, 341),
    (0.085, 426),
    (0.104, 512),
    (0.114, 597),
    (0.138, 682),
    (0.16, 768),
    (0.182, 853),
    (0.206, 938),
    (0.228, 1024),
    (0.264, 1109),
    (0.296, 1194),
    (0.322, 1280),
    (0.356, 1365),
    (0.378, 1450),
    (0.416, 1536),
    (0.464, 1621),
    (0.488, 1706),
    (0.536, 1792),
    (0.568, 1877),
    (0.603, 1962),
    (0.636, 2048),
    (0.682, 2120),
    (0.72, 2192),
    (0.768, 2264),
    (0.806, 2336),
    (0.848, 2408),
    (0.896, 2480),
    (0.956, 2536),
    (0.966, 2592),
    (1.024, 2648),
    (1.052, 2704),
    (1.096, 2760),
    (1.144, 2816),
    (1.168, 2861),
    (1.212, 2906),
    (1.245, 2952),
    (1.284, 2997),
    (1.317, 3042),
    (1.337, 3088),
    (1.392, 3130),
    (1.416, 3173),
    (1.452, 3216),
    (1.488, 3258),
    (1.528, 3301),
    (1.549, 3344),
    (1.594, 3384),
    (1.632, 3424),
    (1.68, 3464),
    (1.711, 3504),
    (1.784, 3584),
    (1.805, 3618),
    (1.848, 3653),
    (1.876, 3688),
    (1.912, 3722),
    (1.948, 3757),
    (1.964, 3792),
    (2.024, 3826),
    (2.048, 3861),
    (2.088, 3896),
    (2.112, 3930),
    (2.151, 3965),
    (2.159, 4000),
)
# A prompt of 900 tokens, read by a model of 1B on two cores, which other programs used at changing rates.
BUSY_PROMPT = (
    (0.0, 0),
    (2.0, 24),
    (3.9, 48),
    (5.9, 72),
    (7.9, 96),
    (9.7, 120),
    (10.9, 136),
    (11.7, 148),
    (12.7, 160),
    (13.2, 172),
    (14.0, 184),
    (14.3, 198),
    (14.8, 207),
    (15.4, 216),
    (16.0, 225),
    (16.9, 234),
    (17.9, 243),
    (18.8, 252),
    (19.7, 261),
    (20.6, 270),
    (21.6, 279),
    (22.6, 288),
    (23.8, 297),
    (24.6, 306),
    (25.2, 315),
    (26.2, 324),
    (27.2, 333),
    (28.7, 342),
    (29.6, 351),
    (30.5, 360),
    (31.5, 369),
    (32.7, 378),
    (34.3, 387),
    (35.1, 396),
    (35.8, 405),
    (37.3, 414),
    (38.1, 423),
    (38.7, 432),
    (39.5, 441),
    (40.3, 450),
    (40.7, 459),
    (41.7, 468),
    (42.8, 477),
    (43.7, 486),
    (44.7, 495),
    (45.6, 504),
    (46.5, 513),
    (47.3, 522),
    (48.2, 531),
    (48.9, 540),
    (49.7, 549),
    (50.5, 558),
    (51.3, 567),
    (52.1, 576),
    (52.5, 585),
    (53.0, 594),
    (53.7, 603),
    (54.5, 612),
    (55.4, 621),
    (56.2, 630),
    (57.0, 639),
    (57.8, 648),
    (58.6, 657),
    (59.3, 666),
    (60.2, 675),
    (60.9, 684),
    (61.6, 693),
    (62.2, 702),
    (62.7, 711),
    (63.1, 720),
    (63.5, 729),
    (64.0, 738),
    (64.4, 747),
    (65.0, 756),
    (65.4, 765),
    (65.9, 774),
    (66.4, 783),
    (66.9, 792),
    (67.4, 801),
    (67.8, 810),
    (68.3, 819),
    (68.8, 828),
    (69.2, 837),
    (69.6, 846),
    (70.0, 855),
    (70.5, 864),
    (70.9, 870),
    (71.2, 877),
    (71.5, 884),
    (71.9, 891),
    (72.3, 897),
    (72.4, 900),
)
# Packing of 1.05 GB (in kB) on the same machine.
PACKING = (
    (0.0, 2228),
    (0.5, 30277),
    (1.1, 46661),
    (1.6, 69468),
    (2.1, 88866),
    (2.7, 116391),
    (3.2, 150470),
    (3.8, 195166),
    (4.3, 210632),
    (4.9, 230293),
    (5.4, 247332),
    (6.1, 265682),
    (6.6, 280100),
    (7.2, 295960),
    (7.7, 310378),
    (8.3, 324468),
    (8.8, 340262),
    (9.3, 354680),
    (9.8, 365166),
    (10.4, 382205),
    (10.9, 403177),
    (11.4, 424280),
    (12.1, 444923),
    (12.6, 456785),
    (13.2, 472514),
    (13.8, 488243),
    (14.4, 498728),
    (14.9, 511836),
    (15.4, 526254),
    (16.0, 539492),
    (16.5, 553910),
    (17.1, 565379),
    (17.9, 589168),
    (18.4, 602734),
    (19.2, 615120),
    (19.9, 627048),
    (20.5, 644087),
    (21.1, 659554),
    (21.6, 673972),
    (22.2, 689700),
    (22.8, 708050),
    (23.4, 729022),
    (23.9, 743440),
    (24.5, 757858),
    (25.0, 772276),
    (25.5, 786694),
    (26.1, 801112),
    (26.6, 816840),
    (27.1, 830799),
    (27.6, 843186),
    (28.2, 857341),
    (28.8, 878575),
    (29.4, 892731),
    (30.0, 906887),
    (30.6, 919273),
    (31.2, 931659),
    (31.7, 945815),
    (32.2, 959971),
    (32.8, 975896),
    (33.3, 995360),
    (33.8, 1014824),
    (34.4, 1030750),
    (34.9, 1041367),
    (34.9, 1041367),
)


def judgements(samples: Samples, growth: float) -> list[tuple[float, float]]:
    """(share of the wait that is over, the expected whole wait over the real one) at each sample."""
    (start, begun), (end, total) = samples[0], samples[-1]
    estimate, found = Estimate(total, begun, start, growth=growth), []
    for at, done in samples[1:-1]:
        estimate.add(done, at)
        if (left := estimate.left(at)) is not None:
            found.append(((at - start) / (end - start), (at - start + left) / (end - start)))
    return found


@pytest.mark.parametrize(
    ("samples", "growth"), [(LONG_PROMPT, 1.44e-3), (BUSY_PROMPT, 1.7e-4), (PACKING, 0.0)], ids="123"
)
def test_after_a_third_the_estimate_is_within_a_quarter(samples: Samples, growth: float) -> None:
    found = judgements(samples, growth)
    assert found[0][0] < 0.12
    assert all(0.75 < whole < 1.25 for over, whole in found if over >= 1 / 3)


def test_without_growth_a_long_prompt_would_be_expected_far_too_soon() -> None:
    assert min(whole for over, whole in judgements(LONG_PROMPT, 0.0) if over >= 1 / 3) < 0.75


@pytest.mark.parametrize("growth", [0.5e-3, 1e-3, 2e-3])
def test_the_growth_is_fitted_near_what_is_expected(growth: float) -> None:
    """The samples follow a growth of 0.001."""
    samples = tuple((n + 1e-3 * n * n / 2, n) for n in range(0, 4001, 100))
    whole = [whole for over, whole in judgements(samples, growth) if over > 1 / 3]
    assert whole == pytest.approx([1.0] * len(whole), rel=1e-6)


def clocked(times: list[float], seen: list[Progress | None]) -> list[Wait | None]:
    read: Callable[[], Progress | None] = iter(seen).__next__
    watch = Watch(read, iter(times).__next__)
    return [watch.look() for _ in times]


def test_a_watch_begins_again_with_each_stage() -> None:
    loading = [Progress("loading", n * 10**9, 5 * 10**9, "bytes") for n in (0, 1, 2)]
    found = clocked(
        [0.0, 1.0, 2.0, 3.0, 10.0, 12.0, 13.0],
        [*loading, None, Progress("reading", 8, 100), Progress("reading", 28, 100), None],
    )
    first, second, third, idle, begun, reading, after = found
    assert first is not None
    assert (first.left, first.rate) == (None, None)
    assert second is not None
    assert (second.rate, second.left, second.elapsed) == (1e9, 4.0, 1.0)
    assert third is not None
    assert third.words() == ["2 GB of 5 GB", "1 GB/s", "3 s left"]
    assert (idle, after) == (None, None)
    assert begun is not None
    assert begun.elapsed == 0.0
    assert reading is not None
    assert reading.words() == ["28 of 100 tokens", "10.0 tok/s", "7 s left"]
    assert reading.record() == {
        "stage": "reading",
        "unit": "tokens",
        "done": 28,
        "total": 100,
        "rate": 10.0,
        "elapsed_s": 2.0,
        "eta_s": 7.2,
    }


def test_the_time_left_goes_on_between_two_reports() -> None:
    estimate = Estimate(100, 0, 0.0)
    estimate.add(20, 2.0)
    assert [estimate.left(now) for now in (2.0, 5.0, 11.0)] == [8.0, 5.0, 0.0]


def test_numbers_for_people() -> None:
    assert [format_rate(rate) for rate in (None, 7.25, 1234.5)] == ["", "7.2 tok/s", "1,234 tok/s"]
    assert format_rate(640e6, "bytes") == "640 MB/s"
    assert [format_bytes(n) for n in (999, 1_313_000_000, 142_953_984)] == ["999 B", "1.31 GB", "143 MB"]
    assert [format_duration(s) for s in (0.4, 95, 600, 7500)] == ["0 s", "1 min 35 s", "10 min", "2 h 5 min"]
