"""All frames of a source have one size: where that is checked."""

from stream_recon.configs.errors import InputError


def check_frame_size(name: str, size: tuple[int, int], first: str, expected: tuple[int, int]) -> None:
    """Compare a frame's (width, height) with that of the ``first`` one; both are named in the message.

    Raises:
        InputError: they differ.
    """
    if size != expected:
        raise InputError(
            f"frames of different sizes: {name} is {size[0]}x{size[1]} but {first} is {expected[0]}x{expected[1]}; "
            "all frames of a source must have one size"
        )
