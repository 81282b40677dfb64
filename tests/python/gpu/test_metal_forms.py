"""The Metal back end on the host executor: forms of its products give the same bits, whatever the chunk."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from support import gpu, native
from support.gguf_write import GGMLType
from support.kernel_args import CONSTANTS

kernels = native.kernels_module()

QUANTIZED = (GGMLType.Q8_0, GGMLType.Q2_K, GGMLType.Q4_K, GGMLType.IQ2_XXS, GGMLType.MXFP4)
TYPES = (*QUANTIZED, GGMLType.F32, GGMLType.F16, GGMLType.BF16)
LIBRARY = gpu.host_library("metal_host")
WORK = CONSTANTS["DS4_EXPERTS_GATE_UP"] | CONSTANTS["DS4_EXPERTS_DOWN"]
Bytes = np.ndarray


@pytest.fixture(params=["matrices", "plain"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DS4_METAL_PLAIN", "1" if request.param == "plain" else "0")
    return str(request.param)


@pytest.fixture(autouse=True)
def order() -> Iterator[None]:
    yield
    gpu.HostControls(LIBRARY).order(0)


def encoded(kind: GGMLType, rng: np.random.Generator, *shape: int) -> Bytes:
    values = (rng.standard_normal(shape) * 0.1).astype(np.float32)
    if kind == GGMLType.F32:
        return values.view(np.uint8).reshape(-1)
    if kind == GGMLType.IQ2_XXS:  # any bytes are values; encoding them would need weights
        blocks = rng.integers(0, 256, (values.size // 256, 66), dtype=np.uint8)
        blocks[:, :2] = np.float16(0.001).reshape(1).view(np.uint8)
        return blocks.reshape(-1)
    return np.frombuffer(kernels.quantize_row(kind, values.reshape(-1)).tobytes(), np.uint8)


def product(device: gpu.Device, weights: Bytes, kind: GGMLType, x: Bytes, n_out: int, groups: int) -> Bytes:
    n, width = x.shape
    y = device.put(np.full((n, n_out), np.nan, np.float32))
    w = device.weight(weights, kind, n_out, width // groups)
    device.run("matmul", w=w, x=device.put(x), y=y, n=n, x_stride=width, y_stride=n_out, groups=groups, quantized=1)
    return device.get(y, n, n_out)


@pytest.mark.parametrize("kind", TYPES, ids=[t.name for t in TYPES])
def test_a_token_gets_the_bits_that_it_gets_alone(form: str, kind: GGMLType) -> None:
    rng = np.random.default_rng(3)
    n, n_in, n_out, groups = 35, 768, 68, 2
    x = rng.standard_normal((n, n_in * groups)).astype(np.float32)
    weights = encoded(kind, rng, n_out, n_in)
    device = gpu.Device(LIBRARY)
    together = product(device, weights, kind, x, n_out, groups)
    for t in (0, 3, 34):
        np.testing.assert_array_equal(together[t : t + 1], product(device, weights, kind, x[t : t + 1], n_out, groups))
    # The CPU sums in another order.
    cpu = product(gpu.Device(), weights, kind, x, n_out, groups)
    gpu.Tolerance(relative=2e-6).check(together, cpu, form)


def experts(
    device: gpu.Device, kind: GGMLType, down: GGMLType, n: int, chosen: Bytes | None = None, quantized: int = 1
) -> Bytes:
    """Sums of three of five experts for n tokens, with weights and inputs that n does not change."""
    rng = np.random.default_rng(7)
    dim, width, n_expert, k = 256, 256, 5, 3
    parts = [
        device.weight(encoded(t, rng, n_expert, n_out, n_in), t, n_out, n_in, n_expert)
        for t, n_out, n_in in ((kind, width, dim), (kind, width, dim), (down, dim, width))
    ]
    x = rng.standard_normal((64, dim)).astype(np.float32)[:n]
    ids = np.stack([rng.permutation(n_expert)[:k] for _ in range(64)]).astype(np.int32)[:n]
    weights = rng.uniform(0.1, 1, (64, k)).astype(np.float32)[:n]
    y = device.put(np.full((n, dim), np.nan, np.float32))
    fields = dict(
        zip(("gate", "up", "down"), parts, strict=True), x=device.put(x), ids=device.put(ids),
        weights=device.put(weights), y=y, n=n, k=k, quantized=quantized, clamp=1.0,
    )  # fmt: skip
    if chosen is None:
        device.run("experts", work=WORK, **fields)
    else:
        first, rest = device.put(chosen.astype(np.uint8)), device.put((~chosen).astype(np.uint8))
        up, add = CONSTANTS["DS4_EXPERTS_GATE_UP"], CONSTANTS["DS4_EXPERTS_ADD"]
        device.run("experts", work=up, chosen=first, **fields)
        device.run("experts", work=WORK - up, chosen=first, **fields)
        device.run("experts", work=WORK | add, chosen=rest, **fields)
    return device.get(y, n, dim)


@pytest.mark.parametrize("kinds", [*((t, t) for t in TYPES), (GGMLType.IQ2_XXS, GGMLType.Q2_K)], ids=str)
def test_experts_of_a_token_do_not_depend_on_the_chunk(form: str, kinds: tuple[GGMLType, GGMLType]) -> None:
    device = gpu.Device(LIBRARY)
    together = experts(device, *kinds, n=18)
    np.testing.assert_array_equal(together[:3], experts(device, *kinds, n=3))
    gpu.Tolerance(relative=3e-6).check(together, experts(gpu.Device(), *kinds, n=18), form)


@pytest.mark.parametrize("n", [2, 18])
def test_experts_in_parts(form: str, n: int) -> None:
    device = gpu.Device(LIBRARY)
    whole = experts(device, GGMLType.Q2_K, GGMLType.Q2_K, n)
    for few in (2, 4):
        parts = experts(device, GGMLType.Q2_K, GGMLType.Q2_K, n, chosen=np.arange(5) < few)
        np.testing.assert_array_equal(parts, whole, err_msg=form)


def test_both_forms_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for plain in ("0", "1"):
        monkeypatch.setenv("DS4_METAL_PLAIN", plain)
        found.append(experts(gpu.Device(LIBRARY), GGMLType.Q4_K, GGMLType.Q4_K, 18))
    np.testing.assert_array_equal(*found)


def test_every_kernel_runs_under_test() -> None:
    """The cases of conformance, and the experts of every type; stops when all have run."""
    library = ctypes.CDLL(str(LIBRARY))
    library.simt_kernels.restype = ctypes.c_size_t

    def names(every: bool) -> set[str]:
        text = ctypes.create_string_buffer(1 << 16)
        assert library.simt_kernels(int(every), text, ctypes.c_size_t(len(text))) <= len(text)
        return set(text.value.decode().split())

    wanted = names(every=True)
    assert len(wanted) > 60
    for kind in TYPES:
        for n, quantized in ((1, 0), (1, 1), (16, 1)):
            experts(gpu.Device(LIBRARY), kind, kind, n, quantized=quantized)
    for case in gpu.all_cases():
        if wanted <= names(every=False):
            break
        case.outputs(gpu.Device(LIBRARY))
    assert sorted(wanted - names(every=False) - {"copy_bytes"}) == []  # copies belong to sessions
