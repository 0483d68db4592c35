"""Table of data set readers, the most specific layout first: the first one that recognises a folder reads it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stream_recon.app.datasets import captures, colmap, nerfstudio, recording, rgbd, rigs, sequence
from stream_recon.app.datasets.recording import Recording, images_in
from stream_recon.app.datasets.text import dataset_errors
from stream_recon.configs.errors import ConfigError, InputError


@dataclass(frozen=True)
class DatasetReader:
    """Reader of one layout."""

    name: str
    title: str
    recognise: Callable[[Path], bool]
    """Whether a folder has the layout; may raise OSError."""
    counter: Callable[[Path], int | None]
    loader: Callable[[Path], Recording] | None
    """None for videos, which `open_source` reads."""

    @property
    def files(self) -> str:
        """One line on the files that identify the layout, and on further ones that are read."""
        return FILES[self.name]

    def count(self, path: Path) -> int | None:
        """Number of images without reading them; None where that fails (`load` then raises the error)."""
        try:
            with dataset_errors(path):
                return self.counter(path)
        except InputError:
            return None

    def load(self, path: Path) -> Recording:
        """Read everything but the images. Raises InputError: files that do not match the layout."""
        assert self.loader is not None, "a video has no files but its frames"
        with dataset_errors(path):
            return self.loader(path)


def _count(images: Callable[[Path], tuple[Path, ...]] | str) -> Callable[[Path], int]:
    """Counter of the images that a function gives, or of a folder of this name."""
    return lambda path: len(images_in(path / images) if isinstance(images, str) else images(path))


FILES = {
    "video": "*.mp4, .mov, .mkv, .avi, .webm ..",
    "images": "at least two images (jpg, png ..), in natural order",
    "bonn": "rgb.txt in a folder called rgbd_bonn_*; groundtruth.txt, depth.txt",
    "eth3d": "rgb.txt and calibration.txt; groundtruth.txt, depth.txt",
    "tum": "rgb.txt; groundtruth.txt, depth.txt",
    "icl-nuim": "associations.txt and rgb/; NAME.gt.freiburg, depth/",
    "euroc": "mav0/cam0/data.csv; sensor.yaml, mav0/state_groundtruth_estimate0/data.csv",
    "kitti": "sequences/NN/ with image_2 (else image_0) and times.txt or calib.txt, poses/NN.txt; or a drive with "
    "image_02/data, image_02/timestamps.txt and calib_cam_to_cam.txt",
    "7scenes": "seq-NN/ with frame-*.color.png; .pose.txt, .depth.png",
    "scannet": "color/ and pose/ or intrinsic/; depth/, intrinsic/intrinsic_color.txt",
    "nerfstudio": "transforms.json and the images that it names",
    "polycam": "keyframes/ with cameras and images; corrected_cameras, corrected_images",
    "record3d": "rgbd/ and metadata, as an .r3d has them; or rgb/, depth/*.exr and metadata.json",
    "arkitscenes": "lowres_wide/ and lowres_wide.traj; lowres_wide_intrinsics/",
    "colmap": "images/ and sparse/0 (or sparse) with cameras and images, .bin or .txt; points3D",
    "sequence": "rgb/ and poses.txt, intrinsics.txt or sparse/; depth/",
}
"""What `DatasetReader.files` says, by its name."""
COUNT_RGB_LIST, COUNT_ASSOCIATED = (partial(rgbd.count_listed, name) for name in ("rgb.txt", "associations.txt"))

VIDEO = DatasetReader("video", "Video files", recording.is_video, recording.count_video, None)
IMAGES = DatasetReader(
    "images", "Folders of images", recording.is_image_folder, _count(images_in), recording.load_image_folder
)
READERS: tuple[DatasetReader, ...] = (
    DatasetReader("bonn", "Bonn RGB-D Dynamic", rgbd.is_bonn, COUNT_RGB_LIST, rgbd.load_bonn),
    DatasetReader("eth3d", "ETH3D SLAM", rgbd.is_eth3d, COUNT_RGB_LIST, rgbd.load_eth3d),
    DatasetReader("tum", "TUM RGB-D", rgbd.is_tum, COUNT_RGB_LIST, rgbd.load_tum),
    DatasetReader("icl-nuim", "ICL-NUIM (TUM-compatible PNGs)", rgbd.is_icl, COUNT_ASSOCIATED, rgbd.load_icl),
    DatasetReader("euroc", "EuRoC MAV", rigs.is_euroc, rigs.count_euroc, rigs.load_euroc),
    DatasetReader("kitti", "KITTI odometry", rigs.is_kitti, _count(rigs.kitti_images), rigs.load_kitti),
    DatasetReader(
        "7scenes", "7-Scenes", rgbd.is_seven_scenes, _count(rgbd.seven_scenes_images), rgbd.load_seven_scenes
    ),
    DatasetReader("scannet", "ScanNet (exported)", rgbd.is_scannet, _count("color"), rgbd.load_scannet),
    DatasetReader(
        "nerfstudio",
        "nerfstudio, instant-ngp",
        nerfstudio.is_nerfstudio,
        nerfstudio.count_nerfstudio,
        nerfstudio.load_nerfstudio,
    ),
    DatasetReader("polycam", "Polycam", captures.is_polycam, _count(captures.polycam_images), captures.load_polycam),
    DatasetReader(
        "record3d", "Record3D", captures.is_record3d, _count(captures.record3d_images), captures.load_record3d
    ),
    DatasetReader(
        "arkitscenes", "ARKitScenes", captures.is_arkitscenes, _count("lowres_wide"), captures.load_arkitscenes
    ),
    DatasetReader("colmap", "COLMAP", colmap.is_colmap, _count(colmap.colmap_images), colmap.load_colmap),
    DatasetReader(
        "sequence", "Sequences of 'stream-recon eval'", sequence.is_sequence, _count("rgb"), sequence.read_sequence
    ),
    VIDEO,
    IMAGES,
)


def reader_named(name: str) -> DatasetReader:
    """The reader of that name. Raises ConfigError."""
    if found := [reader for reader in READERS if reader.name == name]:
        return found[0]
    raise ConfigError(f"no data set called '{name}': there are {', '.join(r.name for r in READERS)}")


def list_datasets() -> list[tuple[str, str, str]]:
    """Name (for ``--dataset``), title and expected files of each reader, in the order in which they are tried."""
    return [(reader.name, reader.title, reader.files) for reader in READERS]
