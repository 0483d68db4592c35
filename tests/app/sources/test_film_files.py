"""What a video's container states: edit lists, pixels that are not square, changes of size, panoramas."""

import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from threading import Event

import cv2
import numpy as np
import pytest
from pymediainfo import MediaInfo

from stream_recon.app.sources.calibration import Calibration
from stream_recon.app.sources.colour import tone_curve
from stream_recon.app.sources.containers import TURNS, film, media_tracks
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.image_decoding import oriented
from stream_recon.app.sources.picture_size import SizeWatch, packed_views, picture_size
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import InputError
from tests.app.media import write_broken_avi, write_images, write_video
from tests.app.sources.film_files import (
    CONTAINERS,
    TO_SAMPLE,
    Element,
    box,
    displayed,
    elements,
    find_box,
    insert_box,
    matroska,
    spherical,
    trimmed,
    turning,
    with_wide_pixels,
)
from tests.mutations import Mutant, of_parts, silently_other

CORPUS = Path(__file__).parents[2] / "corpus" / "files"


@pytest.mark.parametrize(("begin", "seconds"), [(0.0, 2.0), (1.0, 2.0), (0.0, 1.0), (1.5, 0.5)])
def test_a_trimmed_video_is_whole(tmp_path: Path, begin: float, seconds: float) -> None:
    path = trimmed(tmp_path / "cut.mp4", begin, seconds, frames=30, fps=10.0)
    with open_source(str(path)) as source:
        assert source.frame_hint == round(10 * seconds)
        frames = list(source)
        assert len(frames) == round(10 * seconds)
        assert source.damaged == 0 and source.warnings == []


def test_a_trimmed_video_is_entered_at_the_frames_that_are_shown(tmp_path: Path) -> None:
    path = trimmed(tmp_path / "cut.mp4", 1.2, 1.5, frames=30, fps=10.0)
    with open_source(str(path)) as source:
        read = [frame.rgb.mean() for frame in source]
    with open_source(str(path)) as source:
        source.skip(9)
        entered = [frame.rgb.mean() for frame in source]
    assert entered == pytest.approx(read[9:], abs=1.5)


def test_a_video_that_is_cut_off_is_still_told(tmp_path: Path) -> None:
    with open_source(str(write_broken_avi(tmp_path / "a.avi"))) as source:
        read = len(list(source))
        assert read < 30 and source.damaged == 30 - read and "cut off" in source.warnings[0]


@pytest.mark.parametrize(("over", "under", "size"), [(4, 3, (128, 72)), (8, 9, (96, 81)), (1, 1, (96, 72))])
def test_pixels_are_made_square(tmp_path: Path, over: int, under: int, size: tuple[int, int]) -> None:
    path = with_wide_pixels(tmp_path / "wide.mp4", over, under, frames=3, size=(96, 72))
    with open_source(str(path)) as source:
        for frame in source:
            assert (frame.rgb.shape[1], frame.rgb.shape[0]) == size


def test_camera_and_masks_of_the_stored_pixels_are_stretched_along(tmp_path: Path) -> None:
    path = with_wide_pixels(tmp_path / "wide.mp4", 4, 3, frames=3, size=(96, 72))
    mask = np.full((72, 96), 255, np.uint8)
    mask[:, :24] = 0
    write_images(tmp_path / "masks", [])
    cv2.imwrite(str(tmp_path / "masks/0.png"), mask)
    camera = Calibration(90, 120, 48, 36, size=(96, 72))
    with open_source(str(path), FrameChoice(camera=camera.text(), masks=str(tmp_path / "masks"))) as source:
        frame = next(iter(source))
        assert source.intrinsics is not None and source.intrinsics.fx == pytest.approx(120)
        assert frame.mask is not None and frame.mask.shape == (72, 128)
        assert frame.mask[:, :31].all() and not frame.mask[:, 33:].any()


def test_a_change_of_size_is_told_with_what_helps(tmp_path: Path) -> None:
    path = turning(tmp_path / "turn.mjpeg")
    with open_source(str(path)) as source, pytest.raises(InputError, match=r"96x64 to 64x96 at .*--end") as raised:
        frames = []
        for frame in source:
            frames.append(frame)
    assert len(frames) == 10
    at = float(str(raised.value).rsplit("--start ", 1)[1])
    with open_source(str(path), FrameChoice(end=at)) as source:
        assert {frame.rgb.shape for frame in source} == {(64, 96, 3)}
    with open_source(str(path), FrameChoice(start=at)) as source:
        later = list(source)
    assert len(later) == 10 and {frame.rgb.shape for frame in later} == {(96, 64, 3)}
    # A circle stays one.
    bright = np.argwhere(later[0].rgb[..., 0] > 230)
    height, width = np.ptp(bright, axis=0) + 1
    assert width == pytest.approx(height, abs=3)


@pytest.mark.parametrize(
    ("code", "name"), [("MJPG", "a.avi"), ("VP80", "a.webm"), ("VP90", "a.webm"), ("MPG2", "a.mpg"), ("XVID", "a.avi")]
)
def test_sizes_are_read_from_packets(tmp_path: Path, code: str, name: str) -> None:
    writer = cv2.VideoWriter(str(tmp_path / name), cv2.VideoWriter.fourcc(*code), 10, (72, 50))
    if not writer.isOpened():
        pytest.skip("OpenCV has no encoder of it")
    for number in range(4):
        writer.write(np.random.default_rng(number).integers(0, 255, (50, 72, 3), np.uint8))
    writer.release()
    watch = SizeWatch(tmp_path / name, name)
    assert watch.size == (72, 50)
    watch.close()


@pytest.mark.parametrize(("number", "layout"), [(3, "two views side by side"), (4, "two views one"), (5, "two views,")])
@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
def test_two_views_in_a_picture_of_h264_are_refused_by_their_message(
    tmp_path: Path, number: int, layout: str, suffix: str
) -> None:
    path = tmp_path / f"a.{suffix}"
    words = f"-f lavfi -i testsrc=s=64x48:d=0.2:r=10 -c:v libx264 -x264-params frame-packing={number}".split()
    made = subprocess.run(["ffmpeg", "-v", "error", *words, str(path)], check=False) if which("ffmpeg") else None
    if made is None or made.returncode:
        pytest.skip("FFmpeg with libx264 is not installed")
    with pytest.raises(InputError, match=layout):
        open_source(str(path))


def test_two_views_are_read_from_packets() -> None:
    # Message 45: number 0, not cancelled, type 3.
    bits = struct.pack(">B", 0b1_0_000001) + struct.pack(">B", 0b1_0_000000) + bytes(4)
    for code, unit in (("h264", b"\6\x2d"), ("hevc", b"\x4e\1\x2d")):
        assert packed_views(code, b"\0\0\1" + unit + bytes([len(bits)]) + bits) == "two views side by side"
        for end in range(2):
            assert not packed_views(code, b"\0\0\1" + unit + b"\6" + bits[:end])


def test_sizes_are_read_from_packets_of_h264_and_from_junk() -> None:
    packets = (CORPUS / "hlg.h264").read_bytes()
    assert picture_size("h264", packets[:4096]) == (96, 72)
    for code in ("h264", "mpg2", "vp80", "vp90", "mjpg"):
        for seed in range(5):
            picture_size(code, b"\0\0\1" + np.random.default_rng(seed).bytes(60))
            picture_size(code, packets[: 7 * seed])


@pytest.mark.parametrize(("matrix", "orientation"), TURNS.items())
def test_films_are_turned_and_mirrored_as_players_do(
    tmp_path: Path, matrix: tuple[int, int, int, int], orientation: int
) -> None:
    with open_source(str(write_video(tmp_path / "plain.mp4", 3))) as source:
        plain = list(source)
    path = displayed(tmp_path / "turned.mp4", matrix, frames=3)
    mask = np.full(plain[0].rgb.shape[:2], 255, np.uint8)
    mask[:9, :13] = 0
    write_images(tmp_path / "masks", [])
    cv2.imwrite(str(tmp_path / "masks/0.png"), mask)
    for choice in (FrameChoice(), FrameChoice(start=0.02)):
        with open_source(str(path), choice) as source:
            shown = list(source)
        for frame in shown:
            assert np.array_equal(frame.rgb, oriented(plain[frame.index].rgb, orientation))
    if orientation in (5, 6, 7, 8):
        with open_source(str(path), FrameChoice(masks=str(tmp_path / "masks"))) as source:
            found = next(iter(source)).mask
        assert found is not None and np.array_equal(found, oriented(mask, orientation) == 0)


def test_a_slanted_display_matrix_is_told(tmp_path: Path) -> None:
    path = displayed(tmp_path / "a.mp4", (1, 1, -1, 1), frames=3)
    with open_source(str(path)) as source:
        assert any("45 degrees" in line for line in source.warnings)


def full(name: bytes, *content: bytes) -> bytes:
    return box(name, bytes(4), *content)


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (
            box(b"sv3d", full(b"svhd", b"\0"), box(b"proj", full(b"prhd", bytes(12)), full(b"equi", bytes(16)))),
            "no complete panorama",
        ),
        (
            box(b"sv3d", full(b"svhd", b"\0"), box(b"proj", full(b"prhd", bytes(12)), full(b"equi", bytes(15), b"\1"))),
            "a part of a pano",
        ),
        (box(b"sv3d", box(b"proj", full(b"cbmp"))), "cube map.*v360=c3x2"),
        (box(b"sv3d", box(b"proj", full(b"mshp"))), "VR180"),
        (box(b"sv3d", box(b"proj", full(b"fold"))), "projection fold"),
        (full(b"st3d", b"\1"), "one above the other.*crop=iw:ih/2"),
        (full(b"st3d", b"\2"), "side by side.*crop=iw/2"),
        (box(b"vexu", box(b"proj", full(b"prji", b"hequ"))), "VR180"),
        (full(b"st3d", b"\0"), None),
        (box(b"vexu", box(b"proj", full(b"prji", b"rect"))), None),
    ],
)
def test_frames_that_are_no_pinhole_pictures_are_refused_by_kind(
    tmp_path: Path, inner: bytes, message: str | None
) -> None:
    path = write_video(tmp_path / "a.mp4", 3)
    path.write_bytes(insert_box(path.read_bytes(), TO_SAMPLE, inner))
    if message is None:
        with open_source(str(path)) as source:
            assert len(list(source)) == 3
    else:
        with pytest.raises(InputError, match=message):
            open_source(str(path))


@pytest.mark.parametrize("suffix", [".360", ".insv", ".INSP", ".osv"])
def test_files_of_cameras_for_all_directions_are_refused_by_their_name(tmp_path: Path, suffix: str) -> None:
    path = write_video(tmp_path / "a.mp4", 3).rename(tmp_path / f"a{suffix}")
    with pytest.raises(InputError, match=r"lenses of .*export it"):
        open_source(str(path))


def test_a_file_without_a_video_track_is_told(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 3)
    data = bytearray(path.read_bytes())
    at, _ = find_box(bytes(data), [b"moov", b"trak", b"mdia", b"hdlr"])
    data[at + 16 : at + 20] = b"soun"
    at, _ = find_box(bytes(data), [b"moov", b"trak", b"mdia", b"minf", b"vmhd"])
    data[at + 4 : at + 8] = b"smhd"
    path.write_bytes(data)
    with pytest.raises(InputError, match="no video track, only audio"):
        open_source(str(path))


def test_an_encrypted_film_is_told(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 3)
    data = bytearray(path.read_bytes())
    at, _ = find_box(bytes(data), TO_SAMPLE)
    data[at + 4 : at + 8] = b"encv"
    path.write_bytes(data)
    with pytest.raises(InputError, match="encrypted"):
        open_source(str(path))


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ("", "64x48 is not 2:1"),
        ("StereoMode:top-bottom", "one above the other"),
        ("Stitched:false", "not stitched"),
        ("Spherical:true Stitched:true", "64x48 is not 2:1"),
        ("ProjectionType:cubemap", "of projection cubemap"),
        ("CroppedAreaImageWidthPixels:100 FullPanoWidthPixels:200", "a part of a panorama"),
        ("CroppedAreaImageWidthPixels:200 FullPanoWidthPixels:200", "64x48 is not 2:1"),
    ],
)
def test_panoramas_that_are_no_whole_sphere_are_refused_by_name(tmp_path: Path, tags: str, message: str) -> None:
    pairs = [tag.split(":") for tag in tags.split()]
    xml = "".join(f"<GSpherical:{name}>{value}</GSpherical:{name}>" for name, value in pairs)
    with pytest.raises(InputError, match=message):
        open_source(str(spherical(tmp_path / "round.mp4", xml.encode())))


@pytest.mark.parametrize("name", ["x%d.avi", "x%03d.avi", "100%.avi"])
def test_a_percent_sign_in_a_name_is_one(tmp_path: Path, name: str) -> None:
    write_video(tmp_path / "x1.avi", 3)
    write_video(tmp_path / "x001.avi", 3)
    write_video(tmp_path / name, 7)
    with open_source(str(tmp_path / name)) as source:
        assert len(list(source)) == 7


def test_a_still_picture_before_the_film_is_told(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 8)
    data = bytearray(path.read_bytes())
    begin, end = find_box(bytes(data), [b"moov", b"trak"])
    still = bytearray(data[begin:end])
    at, _ = find_box(bytes(still), [b"trak", b"mdia", b"minf", b"stbl", b"stsz"])
    still[at + 16 : at + 20] = (1).to_bytes(4, "big")
    moov, _ = find_box(bytes(data), [b"moov"])
    size = int.from_bytes(data[moov : moov + 4], "big") + len(still)
    data[moov : moov + 4] = size.to_bytes(4, "big")
    path.write_bytes(data[:begin] + still + data[begin:])
    with pytest.raises(InputError, match="-map 0:v:1"):
        open_source(str(path))


def test_a_recording_that_is_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.bag")
    with pytest.raises(InputError, match="not a regular file"):
        open_source(str(tmp_path / "a.bag"))


def test_masks_without_an_image_are_counted(tmp_path: Path) -> None:
    write_images(tmp_path / "a", ["0.png", "1.png"])
    write_images(tmp_path / "masks", ["0.png", "7.png", "8.png"])
    with open_source(str(tmp_path / "a"), FrameChoice(masks=str(tmp_path / "masks"))) as source:
        assert source.warnings == [
            "2 of 3 masks belong to no image, such as 7.png",
            "1 of 2 images have no mask, such as 1.png",
        ]


def test_the_time_of_recording_is_read(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 3)
    assert film(path).recorded is None
    data = bytearray(path.read_bytes())
    at, _ = find_box(bytes(data), [b"moov", b"mvhd"])
    data[at + 12 : at + 16] = (2_082_844_800 + 1_700_000_000).to_bytes(4, "big")
    path.write_bytes(data)
    assert film(path).recorded == 1_700_000_000
    assert film(tmp_path).recorded is None


def test_tones_of_hdr_are_mapped(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 12)
    with open_source(str(path)) as source:
        flat = [float(frame.rgb.mean()) for frame in source]
    box = struct.pack(">I4s4sHHHB", 19, b"colr", b"nclx", 9, 16, 9, 0)
    path.write_bytes(insert_box(path.read_bytes(), TO_SAMPLE, box))
    with open_source(str(path)) as source:
        mapped = [float(frame.rgb.mean()) for frame in source]
    curve = tone_curve(path)
    assert curve is not None and curve[0] == 0 and (np.diff(curve.astype(int)) >= 0).all()
    # PQ codes 203 cd/m2, a white sheet, as 58 % of its range.
    assert 190 < curve[148] < 240 and curve[255] == 255
    assert mapped != pytest.approx(flat, abs=2)
    assert mapped == pytest.approx([curve[round(value)] for value in flat], abs=16)


@pytest.mark.parametrize("name", ["interlaced.mp4", "interlaced.mkv", "interlaced.mpg"])
def test_interlaced_video_is_told(name: str) -> None:
    assert film(CORPUS / name).tracks[0].interlaced
    assert not film(CORPUS / "hlg.mp4").tracks[0].interlaced


HEADS = {b"": 0, b"stsd": 8, b"mp4v": 78} | dict.fromkeys(CONTAINERS, 0)
Part = tuple[str, bytes]


def parts_of(name: bytes, content: bytes) -> list[Part]:
    """Names and bytes of the boxes in the content of a box."""
    at, parts = HEADS[name], list[Part]()
    while at < len(content):
        size = int.from_bytes(content[at : at + 4], "big") or len(content) - at
        parts.append((content[at + 4 : at + 8].decode("latin-1"), content[at : at + size]))
        at += size
    return parts


def with_changes(name: bytes, content: bytes, way: tuple[bytes, ...] = ()) -> Iterator[Mutant[bytes]]:
    """Contents of a box with one box in it, or below, renamed, removed, repeated, moved or added."""
    parts, head = parts_of(name, content), content[: HEADS[name]]
    # What the file begins with has its place, and frames are addressed by theirs.
    for mutant in () if not name else of_parts(parts):
        renamed = [box[:4] + word.encode("latin-1") + box[8:] for word, box in mutant.content]
        yield Mutant(mutant.change, (*mutant.names, "zzzz"), head + b"".join(renamed))
    if name:
        yield Mutant("added to", ("zzzz",), content + box(b"zzzz", bytes(20)))
    for at, (word, whole) in enumerate(parts):
        if word.encode("latin-1") in HEADS:
            before, after = (b"".join(other for _, other in some) for some in (parts[:at], parts[at + 1 :]))
            for inner in with_changes(word.encode("latin-1"), whole[8:]):
                grown = box(word.encode("latin-1"), inner.content)
                yield Mutant(f"{inner.change} {word}", inner.names, head + before + grown + after)


Frames = list[tuple[tuple[int, ...], bytes]]


def film_read(path: Path, data: bytes) -> tuple[Frames, list[str]]:
    path.write_bytes(data)
    with open_source(str(path)) as source:
        return [(frame.rgb.shape, frame.rgb.tobytes()) for frame in source], source.warnings


def upright_cut(path: Path) -> bytes:
    """An upright film that is cut."""
    whole = bytearray(trimmed(path, 0.3, 0.4, frames=10).read_bytes())
    _, end = find_box(bytes(whole), [b"moov", b"trak", b"tkhd"])
    struct.pack_into(">5i", whole, end - 44, 0, 1 << 16, 0, -1 << 16, 0)
    return bytes(whole)


def film_mutants(whole: bytes) -> list[Mutant[bytes]]:
    # A film without an edit list is another valid one; without its codec's head or pictures it is refused by its codec.
    free = (("removed", "edts"), ("removed", "esds"), ("removed", "mp4v"), ("moved", "mvhd"))
    return [
        mutant
        for mutant in with_changes(b"", whole)
        if not any(mutant.change.startswith(change) and mutant.names[0] == name for change, name in free)
    ]


def test_no_change_of_a_box_is_silent(tmp_path: Path) -> None:
    whole = upright_cut(tmp_path / "a.mp4")
    expected, said = film_read(tmp_path / "b.mp4", whole)
    mutants = film_mutants(whole)
    assert len(mutants) > 80 and not said
    assert silently_other(lambda data: film_read(tmp_path / "b.mp4", data), mutants, expected, InputError) == []


def motion_jpeg(path: Path) -> list[Element]:
    """Elements of a Matroska film."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (64, 48))
    for number in range(3):
        writer.write(np.full((48, 64, 3), 80 * number, np.uint8))
    writer.release()
    return elements(path.read_bytes())


def changed_elements(tree: list[Element], above: str = "") -> Iterator[Mutant[list[Element]]]:
    """Renamed and added elements of Matroska, at all levels but those of frames."""
    if above:
        yield Mutant("added to", ("4FFE",), [*tree, ("4ffe", b"\1")])
    for at, (name, inside) in enumerate(tree):
        before, after = tree[:at], tree[at + 1 :]
        if isinstance(inside, list):
            for inner in changed_elements(inside, name):
                yield Mutant(inner.change, inner.names, [*before, (name, inner.content), *after])
        if above and name != "1f43b675":
            yield Mutant(f"renamed {name}", ("4FFE",), [*before, ("4ffe", matroska([(name, inside)])), *after])


def matroska_mutants(tree: list[Element]) -> list[Mutant[list[Element]]]:
    # What kind of track it is and what decodes it are refused by what is missing.
    needed = tuple(f"renamed {name}" for name in ("1654ae6b", "ae", "e0", "86", "83", "1549a966", "d7"))
    return [mutant for mutant in changed_elements(tree) if not mutant.change.endswith(needed)]


def test_no_change_of_an_element_of_matroska_is_silent(tmp_path: Path) -> None:
    tree = motion_jpeg(tmp_path / "a.mkv")

    def read(changed: list[Element]) -> tuple[Frames, list[str]]:
        return film_read(tmp_path / "b.mkv", matroska(changed))

    def with_element(name: str, value: bytes | list[Element], level: list[Element] = tree) -> list[Element]:
        """An element of the video, or of its projection."""
        grown = list[Element]()
        for number, inside in level:
            more = inside if isinstance(inside, bytes) else with_element(name, value, inside)
            grown.append((number, [*more, (name, value)] if number == "e0" and isinstance(more, list) else more))
        return grown

    expected, said = read(tree)
    assert len(expected) == 3 and not said
    assert silently_other(read, matroska_mutants(tree), expected, InputError) == []
    for name, value, word in (("54bb", b"\x08", "PixelCropTop 8"), ("53c0", b"\1", "AlphaMode 1")):
        found, said = read(with_element(name, value))
        assert found == expected and len(said) == 1 and word in said[0]
    for number, kind in ((1, "not 2:1"), (2, "cube map"), (7, "unknown projection")):
        with pytest.raises(InputError, match=kind):
            read(with_element("7670", [("7671", bytes([number]))]))


def test_speeds_and_tracks_that_are_not_applied_are_told(tmp_path: Path) -> None:
    for name, at, value, word in (("mvhd", 28, b"\0\0\x80\0", "preferred rate"), ("tkhd", 8, bytes(4), "not enabled")):
        path = write_video(tmp_path / f"{name}.mp4", 3)
        data = bytearray(path.read_bytes())
        begin, _ = find_box(bytes(data), [b"moov", *([b"trak"] if name == "tkhd" else []), name.encode()])
        data[begin + at : begin + at + 4] = value
        path.write_bytes(data)
        with open_source(str(path)) as source:
            assert len(list(source)) == 3 and len(source.warnings) == 1 and word in source.warnings[0]


def test_a_clean_aperture_that_is_a_part_is_told(tmp_path: Path) -> None:
    for width, count in ((64, 0), (48, 1)):
        path = write_video(tmp_path / f"{width}.mp4", 3)
        aperture = box(b"clap", struct.pack(">8I", width, 1, 48, 1, 0, 1, 0, 1))
        path.write_bytes(insert_box(path.read_bytes(), TO_SAMPLE, aperture))
        with open_source(str(path)) as source:
            assert len(source.warnings) == count and all("48x48 is not cut out" in line for line in source.warnings)


def test_a_library_that_does_not_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Event()
    monkeypatch.setattr(MediaInfo, "parse", lambda file: end.wait())
    assert media_tracks("/film.mkv", limit_s=0.05) == []
    end.set()
