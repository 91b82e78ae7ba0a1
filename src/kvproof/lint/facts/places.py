"""Containers: shared memory, IPC, network, memory."""

from __future__ import annotations

from ..finding import Fact
from . import links

DEFAULT_SHM_BYTES = 64 * 1024**2
"""Of a container that is given no other."""
_POOL = "From vLLM 0.27 on the pool of native offloading is a file in /dev/shm"
FACTS = {
    "shm-too-small": Fact(
        "error", "/dev/shm has {seen} (shm), and the pool of native offloading takes {needed}",
        _POOL + "; the engine stops with Insufficient space in /dev/shm, before 0.28 with OSError: Bad address.",
        "{fix}", versions=">=0.27", link=links.VLLM + "44888"),
    "shm-missing": Fact(
        "error", "/dev/shm is not sized (shm is 64 MiB by default), and the pool of native offloading takes {needed}",
        _POOL + "; the engine stops with Insufficient space in /dev/shm, before 0.28 with OSError: Bad address.",
        "{fix}", versions=">=0.27", link=links.VLLM + "44888", absence=True),
    "shm-tiering": Fact(
        "error", "/dev/shm has {seen} (shm), and TieringOffloadingSpec keeps its pool of {needed} there",
        "Its pool is a file in /dev/shm since 0.22.", "{fix}", versions=">=0.22", link=links.VLLM + "44888"),
    "memory-limit": Fact(
        "error", "the container may use {seen} of memory, and {what} alone takes {needed}",
        "What lies in /dev/shm or is pinned counts as the container's memory, so it is killed.",
        "a limit above {needed} plus what the engine itself needs", link=links.KUBERNETES_SHM),
    "ipc-not-shared": Fact(
        "error", "{who} has an IPC namespace of its own, but LMCache's server maps the engine's GPU memory",
        "Two containers without shared IPC fail with a timeout of REGISTER_KV_CACHE or MapBufferObjectFailed.",
        "{fix}", link=links.LMCACHE + "3326", absence=True),
    "server-without-gpus": Fact(
        "warning", "the container of the cache server is given no GPUs", "It maps the engine's GPU memory, so it must "
        "see all GPUs that the engine uses.", "{fix}", link=links.LMCACHE + "3326", absence=True),
    "server-on-own-localhost": Fact(
        "error", "the engine looks for {what} on {seen}, which is its own container",
        "Without the host's network every container has a localhost of its own: Cannot reach the LMCache MP server.",
        "{fix}", link=links.LMCACHE + "3618", absence=True),
    "server-listens-on-localhost": Fact(
        "error", "the cache server listens on {seen}, out of reach of the engine's container",
        "lmcache server binds localhost unless told otherwise.", "--host 0.0.0.0, or the host's network for both",
        link=links.QUICKSTART, absence=True),
    "server-port": Fact(
        "error", "the engine looks for the cache server on port {seen}, and it listens on {right}",
        "Cannot reach the LMCache MP server.", "the same port on both sides", link=links.LMCACHE + "3618"),
    "server-name": Fact(
        "error", "the engine looks for the cache server at {seen}; {near}",
        "Cannot reach the LMCache MP server.", "{right}", link=links.LMCACHE + "3618"),
    "server-scheme": Fact(
        "warning", "{key} is {seen}, without tcp://", "vLLM's own LMCacheMPConnector joins host and port as they are "
        "and does not reach the server; LMCache 0.5.6 adds what is missing.", "tcp://{seen}",
        link=links.LMCACHE + "3618"),
}
