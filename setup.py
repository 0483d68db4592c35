"""Where the package's folders are: they stand at the top of the repository, and install as ``stream_recon.*``.

All else is in pyproject.toml. The links in .package only serve programs that run from the repository without
installation; a system without symbolic links installs the package all the same.
"""

from setuptools import find_packages, setup

FOLDERS = ("app", "cache", "configs", "models")

setup(
    packages=[
        "stream_recon",
        *(f"stream_recon.{folder}" for folder in FOLDERS),
        *(f"stream_recon.{folder}.{name}" for folder in FOLDERS for name in find_packages(folder)),
    ],
    package_dir={"stream_recon": ".package/stream_recon", **{f"stream_recon.{folder}": folder for folder in FOLDERS}},
)
