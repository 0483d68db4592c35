"""Video encoder: H.264 by ffmpeg or OpenCV, otherwise MPEG-4."""

import os
import shutil
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
            writer = _opencv_writer(path, codec, fps, size)
            if writer.isOpened():
                self.codec, self._writer = name, writer
                return
        raise ResourceError("there is no video encoder: install ffmpeg")

    def write(self, rgb: NDArray[np.uint8]) -> None:
        """Add a frame [h, w, 3]. Raises OutputError where the encoder failed, as on a full disk."""
        assert (rgb.shape[1], rgb.shape[0]) == self._size
        if self._writer is not None:
            self._writer.write(cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR))
            self._written += 1
            return
        try:
            self._pipe.write(np.ascontiguousarray(rgb).data)
        except BrokenPipeError as error:
            raise OutputError(f"{self._path}: the encoder failed: {self._error_text()}") from error

    def __enter__(self) -> "VideoEncoder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.release()
            # OpenCV does not report a full disk.
            if kind is None and int(cv2.VideoCapture(str(self._path)).get(cv2.CAP_PROP_FRAME_COUNT)) != self._written:
                raise OutputError(f"{self._path.name} is incomplete: is the disk full?")
            return
        assert self._process is not None
        if kind is not None:
            self._process.kill()
            self._process.communicate()
            return
        error_text = self._error_text()
        if self._process.returncode:
            raise OutputError(f"{self._path}: the encoder failed: {error_text}")

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._process is not None and self._process.stdin is not None
        return self._process.stdin

    def _error_text(self) -> str:
        assert self._process is not None
        return self._process.communicate()[1].decode(errors="replace").strip()


def _ffmpeg_writes_h264() -> bool:
    if shutil.which("ffmpeg") is None:
        return False
    listed = subprocess.run(["ffmpeg", "-hide_banner", "-encoders"], capture_output=True, text=True, check=False)
    return "libx264" in listed.stdout


def _opencv_writer(path: Path, codec: str, fps: float, size: tuple[int, int]) -> cv2.VideoWriter:
    """OpenCV's writer, without its messages on stderr about missing codecs."""
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    level = cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        return cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*codec), fps, size)
    finally:
        cv2.utils.logging.setLogLevel(level)
