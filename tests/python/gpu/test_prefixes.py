"""A cached prefix and what is computed behind it, on the host executor: the bits of one cold run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ds4
import numpy as np
from support import gpu

# Around multiples of 4, and around 4 * 17 tokens, from which on the indexer chooses. Those of 128 are left to the cases
# of single operations.
EDGES = (64, 67, 69)


def test_a_cached_prefix_changes_no_bit(tiny_gguf: Callable[..., Path]) -> None:
    ds4.load_backend(gpu.host_library("cuda_host"))
    tokens = np.random.default_rng(9).integers(0, 512, 72).tolist()
    with ds4.Model.open(tiny_gguf("flash"), backend="cuda-host") as model:
        with model.session(n_ctx=96, chunk=96) as session:
            cold = session.eval_logits(tokens)
        with model.session(n_ctx=96, chunk=48) as session:
            held = 0
            for edge in EDGES:
                for end in (edge, edge + 1):  # a chunk that ends here, and a token alone behind it
                    if end > held:
                        rows = session.eval_logits(tokens[held:end])
                        np.testing.assert_array_equal(rows.view(np.uint32), cold[held:end].view(np.uint32), f"to {end}")
                        held = end
            rows = session.eval_logits(tokens[held:])
            np.testing.assert_array_equal(rows.view(np.uint32), cold[held:].view(np.uint32))
