# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False, autotestdict=False
"""Open models. Nothing here is closed by hand: the weights are unmapped when the last reference is gone."""

cimport cython
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from ds4._native._capi cimport (
    DS4_MAX_LAYERS,
    DS4_OK,
    ds4_error,
    ds4_memory_plan,
    ds4_model,
    ds4_model_backend,
    ds4_model_check,
    ds4_model_close,
    ds4_model_diagnose,
    ds4_model_fingerprint,
    ds4_model_get_shape,
    ds4_model_gguf,
    ds4_model_has_mtp,
    ds4_model_open,
    ds4_model_options,
    ds4_model_options_init,
    ds4_model_warnings,
    ds4_session_memory,
    ds4_session_options,
    ds4_session_options_init,
    ds4_shape,
    ds4_status,
)
from ds4._native._core cimport Pulse, check, pulse_trampoline
from ds4._native._gguf cimport File


cdef dict _shape(const ds4_shape *s):
    cdef uint32_t i, n_layer = min(s.n_layer, <uint32_t>DS4_MAX_LAYERS)
    cdef dict out = {
        "name": (<const char *>s.name).decode("utf-8", "replace"),
        "n_layer": s.n_layer,
        "n_embd": s.n_embd,
        "n_vocab": s.n_vocab,
        "n_head": s.n_head,
        "head_dim": s.head_dim,
        "n_rot": s.n_rot,
        "q_lora": s.q_lora,
        "o_lora": s.o_lora,
        "o_groups": s.o_groups,
        "n_expert": s.n_expert,
        "n_expert_used": s.n_expert_used,
        "n_expert_shared": s.n_expert_shared,
        "n_ff": s.n_ff,
        "n_hash_layer": s.n_hash_layer,
        "window": s.window,
        "n_index_head": s.n_index_head,
        "index_dim": s.index_dim,
        "index_top_k": s.index_top_k,
        "n_hc": s.n_hc,
        "sinkhorn_iterations": s.sinkhorn_iterations,
        "expert_scale": s.expert_scale,
        "norm_eps": s.norm_eps,
        "hc_eps": s.hc_eps,
        "swiglu_clamp": s.swiglu_clamp,
        "rope_base": s.rope_base,
        "compress_rope_base": s.compress_rope_base,
        "yarn_factor": s.yarn_factor,
        "yarn_beta_fast": s.yarn_beta_fast,
        "yarn_beta_slow": s.yarn_beta_slow,
        "yarn_original_ctx": s.yarn_original_ctx,
    }
    out["compress_ratio"] = tuple([s.compress_ratio[i] for i in range(n_layer)])
    return out


@cython.final
cdef class Model:
    """The weights of one GGUF file, bound and checked. Immutable, usable from any number of threads."""

    def __init__(self, bytes path not None, str shown not None, str backend not None, bytes mtp=None):
        cdef ds4_model_options options
        cdef ds4_error err
        cdef ds4_status status
        cdef ds4_model *out = NULL
        cdef const char *c_path = path
        cdef bytes c_backend = backend.encode()
        if self.model != NULL:
            raise RuntimeError("this model is open already")
        ds4_model_options_init(&options)
        options.backend = c_backend
        if mtp is not None:
            options.mtp_path = mtp
        with nogil:
            status = ds4_model_open(c_path, &options, &out, &err)
        if status != DS4_OK and mtp is not None and mtp in <bytes>err.message:
            shown = mtp.decode(errors="surrogateescape")
        check(status, &err, shown)
        self.model = out
        self.path = shown

    def __dealloc__(self):
        # Sessions hold a count of their own in the core, so the order of release does not matter.
        if self.model != NULL:
            with nogil:
                ds4_model_close(self.model)

    def shape(self) -> dict:
        """Return the numbers of the architecture."""
        cdef ds4_shape s
        ds4_model_get_shape(self.model, &s)
        return _shape(&s)

    def gguf(self) -> File:
        """Return the directory of the file."""
        return File.borrow(ds4_model_gguf(self.model), self, self.path)

    def has_mtp(self) -> bool:
        """Tell whether the MTP block is loaded."""
        return ds4_model_has_mtp(self.model) != 0

    def warnings(self) -> list:
        """Return the warnings of the load."""
        cdef const char *text = ds4_model_warnings(self.model)
        return [line for line in text.decode("utf-8", "replace").split("\n") if line]

    def backend(self) -> str:
        """Return the backend in use."""
        return ds4_model_backend(self.model).decode()

    def fingerprint(self) -> bytes:
        """Return the 16 bytes that identify the file."""
        cdef bytes out = PyBytes_FromStringAndSize(NULL, 16)
        ds4_model_fingerprint(self.model, <uint8_t *>PyBytes_AsString(out))
        return out

    def memory(self, uint32_t n_ctx, uint32_t chunk, bint rows_f16, bint with_mtp, uint32_t n_threads,
               uint32_t checkpoint_every, uint64_t checkpoint_bytes) -> dict:
        """Return what a session takes, in bytes."""
        cdef ds4_shape s
        cdef ds4_memory_plan plan
        cdef ds4_session_options o
        ds4_model_get_shape(self.model, &s)
        ds4_session_options_init(&o)
        o.n_ctx = n_ctx
        o.chunk = chunk
        o.rows_f16 = rows_f16
        o.with_mtp = with_mtp
        o.n_threads = n_threads
        o.checkpoint_every = checkpoint_every
        o.checkpoint_bytes = checkpoint_bytes
        ds4_session_memory(&s, &o, &plan)
        return {
            "window_bytes": plan.window_bytes,
            "compressed_bytes": plan.compressed_bytes,
            "indexer_bytes": plan.indexer_bytes,
            "compressor_bytes": plan.compressor_bytes,
            "scratch_bytes": plan.scratch_bytes,
            "checkpoint_bytes": plan.checkpoint_bytes,
            "total_session_bytes": plan.total_session_bytes,
        }

    def check(self, progress=None) -> None:
        """Decode every weight and raise when one is not finite."""
        cdef ds4_error err
        cdef ds4_status status
        cdef Pulse pulse = Pulse()
        cdef void *ud = <void *>pulse
        pulse.begin(progress)
        with nogil:
            status = ds4_model_check(self.model, pulse_trampoline, ud, &err)
        pulse.end(status, &err, self.path)


def diagnose(File file not None) -> tuple:
    """Return the recognised or nearest shape and the text of every difference (empty when it would load)."""
    cdef ds4_shape s
    cdef ds4_error err
    cdef ds4_status status
    cdef bytearray report = bytearray(32768)
    cdef char *text = report
    cdef size_t cap = 32768
    with nogil:
        status = ds4_model_diagnose(file.gguf, &s, text, cap, &err)
    check(status, &err, file.path)
    return _shape(&s), report.split(b"\0", 1)[0].decode("utf-8", "replace")
