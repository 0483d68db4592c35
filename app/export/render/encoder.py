"""Video encoder: H.264 by ffmpeg or OpenCV, otherwise MPEG-4."""

import errno
import os
import shutil
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import IO

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.configs.errors import OutputError, ResourceError


class VideoEncoder:
    """Context manager that writes frames of one size to an MP4 file, which is complete at the end of the block.

    Attributes:
        codec: H.264, or MPEG-4 where neither ffmpeg nor OpenCV has an H.264 encoder.
    """

    def __init__(self, path: Path, size: tuple[int, int], fps: float) -> None:
        """
        Raises:
            ResourceError: there is no video encoder.
        """
        self._size, self._path, self._written = size, path, 0
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: cv2.VideoWriter | None = None
        if _ffmpeg_writes_h264():
            self.codec = "H.264"
            command = ["ffmpeg", "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
            command += ["-s", f"{size[0]}x{size[1]}", "-r", f"{fps:g}", "-i", "-", "-c:v", "libx264", "-crf", "18"]
            command += ["-pix_fmt", "yuv420p", "-movflags", "+faststart", str(path)]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
            return
        for codec, name in (("avc1", "H.264"), ("mp4v", "MPEG-4")):
            writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*codec), fps, size)
            if writer.isOpened():
                self.codec, self._writer = name, writer
                return
        raise ResourceError("there is no video encoder: install ffmpeg")

    def write(self, rgb: NDArray[np.uint8]) -> None:
        """Add a frame [h, w, 3]. Raises OSError where the disk is full, OutputError where the encoder failed."""
        assert (rgb.shape[1], rgb.shape[0]) == self._size
        if self._writer is not None:
            self._writer.write(cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR))
            self._written += 1
            return
        try:
            self._pipe.write(np.ascontiguousarray(rgb).data)
        except BrokenPipeError as error:
            raise self._failure() from error

    def __enter__(self) -> "VideoEncoder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.release()
            # OpenCV does not report a full disk, which is the one reason why frames are missing.
            if kind is None and int(cv2.VideoCapture(str(self._path)).get(cv2.CAP_PROP_FRAME_COUNT)) != self._written:
                raise _disk_full()
            return
        assert self._process is not None
        if kind is not None:
            self._process.kill()
            self._process.communicate()
            return
        failure = self._failure()
        if self._process.returncode:
            raise failure

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._process is not None and self._process.stdin is not None
        return self._process.stdin

    def _failure(self) -> Exception:
        """Wait for the end of ffmpeg; the error to raise where it failed."""
        assert self._process is not None
        text = self._process.communicate()[1].decode(errors="replace").strip()
        code = self._process.returncode
        # The system ends a program by the signal where a file reaches the largest size that it allows.
        if code == -signal.SIGXFSZ or any(os.strerror(number) in text for number in (errno.ENOSPC, errno.EFBIG)):
            return _disk_full()
        reason = " ".join(text.split()) or (f"signal {-code}" if code < 0 else f"exit code {code}")
        return OutputError(f"the video cannot be written: ffmpeg failed: {reason}")


def _disk_full() -> OSError:
    return OSError(errno.ENOSPC, "the disk is full, or the file's size is limited")


def _ffmpeg_writes_h264() -> bool:
    if shutil.which("ffmpeg") is None:
        return False
    listed = subprocess.run(["ffmpeg", "-hide_banner", "-encoders"], capture_output=True, text=True, check=False)
    return "libx264" in listed.stdout
