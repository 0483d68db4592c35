"""Whether our kernels can run: Triton may be installed and yet find no C compiler or no fitting driver."""

import logging
from functools import lru_cache
from importlib.util import find_spec

import torch

logger = logging.getLogger(__name__)


@lru_cache(maxsize=1)
def runs_triton() -> bool:
    """Whether Triton compiles and runs a kernel on the CUDA device; tried once."""
    if not torch.cuda.is_available() or find_spec("triton") is None:
        return False
    try:
        from stream_recon.cache.kernels.store import fill_ones

        return bool(fill_ones(torch.zeros(1, device="cuda")).all())
    except Exception as error:  # noqa: BLE001  # whatever goes wrong there, the plain path works
        logger.warning("Triton does not run here, so steps will be slower: %s", str(error).strip().splitlines()[:1])
        return False
