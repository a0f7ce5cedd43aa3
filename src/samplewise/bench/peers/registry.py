"""The peers by name: package, where it comes from, what it needs. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """One library.

    Attributes:
        name: of its environment, and of `samplewise bench install NAME`.
        module, distribution: what is imported, and whose version is reported.
        methods: the measured methods that it offers; one name of `adapters.STEPS` each.
        requirements: what pip installs; empty if it cannot be had from PyPI.
        build: built from source with cmake against the torch that is there.
        needs: said before an installation, and where the peer is absent.
        approximate: those of its methods whose loss is not the exact one.
    """

    name: str
    module: str
    distribution: str
    methods: tuple[str, ...]
    requirements: tuple[str, ...] = ()
    build: bool = False
    needs: str = ""
    approximate: tuple[str, ...] = ()


ALL = (
    Peer(
        "fast-rnnt", "fast_rnnt", "fast_rnnt", ("fast-rnnt", "fast-rnnt-pruned"), ("fast_rnnt==1.3",), True,
        "a source build: cmake, a C++20 compiler, about a minute", ("fast-rnnt-pruned",),
    ),
    Peer(
        "optimized-transducer", "optimized_transducer", "optimized_transducer", ("optimized-transducer",),
        ("optimized_transducer==1.4",), True, "a source build: cmake, a C++20 compiler, about a minute",
    ),
    Peer(
        "warprnnt-numba", "warprnnt_numba", "warprnnt_numba", ("warprnnt-numba",), ("warprnnt_numba==0.4.1",),
        needs="nothing but numba",
    ),
    Peer(
        "torchaudio", "torchaudio", "torchaudio", ("torchaudio",), ("torch==2.9.1", "torchaudio==2.9.1"),
        needs="a torch of its own and its CUDA libraries: about 7 GB",
    ),
    Peer(
        "warp-transducer", "warprnnt_pytorch", "warprnnt_pytorch", ("warp-transducer",),
        needs="a build of github.com/HawkAaron/warp-transducer: --path the directory that holds warprnnt_pytorch",
    ),
    Peer(
        "k2", "k2", "k2", ("k2", "k2-pruned"), needs="a k2 built for this torch: --path the directory that holds k2",
        approximate=("k2-pruned",),
    ),
    Peer(
        "nemo", "nemo", "nemo_toolkit", ("nemo",), ("nemo_toolkit[asr]==3.0.0",),
        needs="NeMo and all that it brings: about 1 GB beside torch",
    ),
)  # fmt: skip

PEERS = {peer.name: peer for peer in ALL}
BY_METHOD = {method: peer for peer in ALL for method in peer.methods}
