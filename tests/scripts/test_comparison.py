"""What fell since the last recorded run of a benchmark is named."""

from pathlib import Path

BEFORE = [
    ["what", "figure"],
    ["step, bf16", "80 ms (p95 90) = 12.5 frames/s"],
    ["peak", "500 MiB"],
    ["note", "12 of 13"],
]


def test_only_losses_beyond_the_limit_are_named() -> None:
    from bench.comparison import losses

    now = [
        ["what", "figure"],
        ["step, bf16", "99 ms (p95 300) = 10.1 frames/s"],
        ["peak", "560 MiB"],
        ["note", "1 of 13"],
    ]
    assert losses(BEFORE, BEFORE) == []
    found = losses(BEFORE, now)
    assert len(found) == 2 and "80 ms before, 99 ms now" in found[0] and "12.5 frames/s" in found[1]
    assert losses(now, BEFORE) == [], "a gain is no loss"


def test_units_of_columns_and_rows_count() -> None:
    from bench.comparison import losses

    before = [["streams", "frames/s in all", "step, ms"], ["32", "2,992", "10.4 (13.8)"]]
    now = [["streams", "frames/s in all", "step, ms"], ["32", "728", "44 (50)"], ["64", "1", "900"]]
    assert len(losses(before, now)) == 2
    assert losses([["what", "a"], ["time in ms", "10"]], [["what", "a"], ["time in ms", "20"]])


def test_a_run_is_compared_with_the_last_one_of_its_kind_of_machine(tmp_path: Path) -> None:
    from bench import comparison

    runs = tmp_path / "runs.json"
    entry = {"machine": "Xeon, 2 threads, torch 2.11", "date": "2026-01-01", "commit": "abc", "rows": BEFORE}
    comparison.store("step", entry, runs)
    slower = [["what", "figure"], ["step, bf16", "200 ms"]]
    assert "no recorded run" in comparison.report("step", slower, "EPYC, 2 threads, torch 2.11", runs)
    assert "no recorded run" in comparison.report("memory", slower, "Xeon, 2 threads, torch 2.11", runs)
    assert "80 ms before, 200 ms now" in comparison.report("step", slower, "Xeon, 2 threads, torch 2.13", runs)
    comparison.store("step", {**entry, "rows": slower}, runs)
    assert "nothing fell" in comparison.report("step", slower, "Xeon, 2 threads, torch 2.11", runs)
