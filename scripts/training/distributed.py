"""Workers of a run: one process for each GPU, started by torchrun, or a single process."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

TIMEOUT = timedelta(minutes=30)
"""Compiling can take one worker long while the others wait."""


@dataclass(frozen=True)
class Workers:
    """This process among all workers, and their collective operations."""

    rank: int
    count: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this worker writes files."""
        return self.rank == 0

    def share_(self, tensor: Tensor) -> Tensor:
        """Give all workers the first one's values, in place."""
        if self.count > 1:
            dist.broadcast(tensor, 0)
        return tensor

    def average_(self, tensor: Tensor) -> Tensor:
        """Mean over the workers, in place; the same bits everywhere."""
        if self.count > 1:
            dist.all_reduce(tensor)
            tensor.div_(self.count)
        return tensor

    def gather(self, rows: Tensor) -> Tensor:
        """Stack all workers' rows [n, K], n being the same everywhere, to [count * n, K]."""
        if self.count == 1:
            return rows
        parts = [torch.empty_like(rows) for _ in range(self.count)]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    def wait(self) -> None:
        """Wait until all workers have reached this call."""
        self.average_(torch.zeros(1, device=self.device)).tolist()

    def close(self) -> None:
        if self.count > 1:
            dist.destroy_process_group()


def join_workers(environment: Mapping[str, str] = os.environ) -> Workers:
    """The workers that torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK) describe; else, this process alone.

    On a GPU, the calling thread then works on a stream of high priority. Parallel work, such as rendering clips, gets
    the remaining resources. (No stream has less priority than the default one.)
    """
    count = int(environment.get("WORLD_SIZE", "1"))
    rank, local = int(environment.get("RANK", "0")), int(environment.get("LOCAL_RANK", "0"))
    if torch.cuda.is_available():
        # A worker may see all GPUs of the host, or only its own.
        device = torch.device("cuda", local % torch.cuda.device_count())
        torch.cuda.set_device(device)
        torch.cuda.set_stream(torch.cuda.Stream(device, priority=-1))
    else:
        device = torch.device("cpu")
    if count > 1:
        if device.type == "cuda":
            dist.init_process_group("nccl", timeout=TIMEOUT, device_id=device)
        else:
            dist.init_process_group("gloo", timeout=TIMEOUT)
    return Workers(rank, count, device)
