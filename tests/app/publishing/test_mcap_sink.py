"""Names of recordings."""

from pathlib import Path

import pytest

pytest.importorskip("foxglove")

from stream_recon.app.publishing.mcap_sink import McapSink
from stream_recon.configs.errors import OutputError


def test_what_others_recorded_is_kept_and_does_not_stop_a_new_recording(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, left, mine = (tmp_path / name for name in ("run.mcap", "run.part.mcap", "mine"))
    left.write_bytes(b"recorded")
    mine.write_bytes(b"mine")
    (tmp_path / "run.part1.mcap").symlink_to(mine)
    with caplog.at_level("WARNING"):
        first, second = McapSink(path), McapSink(path)
    line = f"a run that was killed or goes on left a part of {path}: this one is in {tmp_path / 'run.part2.mcap'}"
    assert line in caplog.messages
    first.close()
    with pytest.raises(OutputError, match=r"run.mcap was not completed.*what was written is in .*run.part3.mcap"):
        second.close()
    with pytest.raises(OutputError, match=r"run.mcap exists"):
        McapSink(path)
    assert path.stat().st_size > 0 and (tmp_path / "run.part3.mcap").stat().st_size > 0
    assert left.read_bytes() == b"recorded" and mine.read_bytes() == b"mine"
