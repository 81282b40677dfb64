# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False, autotestdict=False
"""Open models. Nothing here is closed by hand: the weights are unmapped when the last reference is gone."""

cimport cython
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from ds4._native._capi cimport (
    DS4_MAX_LAYERS,
    DS4_OK,
    ds4_error,
    ds4_expert_block,
    ds4_expert_stats,
    ds4_measure_reads,
    ds4_memory_plan,
    ds4_model,
    ds4_model_backend,
    ds4_model_check,
    ds4_model_close,
    ds4_model_diagnose,
    ds4_model_expert_block,
    ds4_model_expert_heat,
    ds4_model_expert_map,
    ds4_model_expert_preload,
    ds4_model_expert_set_heat,
    ds4_model_expert_stats,
    ds4_model_expert_trace,
    ds4_model_expert_trace_start,
    ds4_model_expert_trace_stop,
    ds4_model_fingerprint,
    ds4_model_get_shape,
    ds4_model_gguf,
    ds4_model_has_mtp,
    ds4_model_open,
    ds4_model_options,
    ds4_model_options_init,
    ds4_model_streams,
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


cdef int _reads(ds4_model_options *o, int32_t io, uint32_t depth, uint64_t piece, bint cached) except -1:
    o.read_io = io
    o.read_depth = depth
    o.read_piece = piece
    o.read_cached = cached
    return 0


def measure_reads(bytes path not None, str shown not None, int32_t io, uint32_t depth, uint64_t piece, bint cached,
                  uint64_t n_bytes, uint32_t reads, uint64_t seed) -> float:
    """Return the bytes a second that reads from places all over a file give."""
    cdef ds4_model_options options
    cdef ds4_error err
    cdef ds4_status status
    cdef double speed = 0
    cdef const char *c_path = path
    ds4_model_options_init(&options)
    _reads(&options, io, depth, piece, cached)
    with nogil:
        status = ds4_measure_reads(c_path, &options, n_bytes, reads, seed, &speed, &err)
    check(status, &err, shown)
    return speed


@cython.final
cdef class Model:
    """The weights of one GGUF file, bound and checked. Usable from any number of threads."""

    def __init__(self, bytes path not None, str shown not None, str backend not None, bytes mtp=None,
                 uint64_t expert_cache_bytes=0, int32_t io=0, uint32_t depth=0, uint64_t piece=0, bint cached=False,
                 double half_life=0.0, bint guess=True, progress=None):
        cdef ds4_model_options options
        cdef ds4_error err
        cdef ds4_status status
        cdef ds4_model *out = NULL
        cdef const char *c_path = path
        cdef bytes c_backend = backend.encode()
        cdef Pulse pulse = Pulse()
        if self.model != NULL:
            raise RuntimeError("this model is open already")
        ds4_model_options_init(&options)
        options.backend = c_backend
        if mtp is not None:
            options.mtp_path = mtp
        options.expert_cache_bytes = expert_cache_bytes
        options.expert_half_life = half_life
        options.expert_no_guesses = not guess
        options.pulse = pulse_trampoline
        options.ud = <void *>pulse
        _reads(&options, io, depth, piece, cached)
        pulse.begin(progress)
        with nogil:
            status = ds4_model_open(c_path, &options, &out, &err)
        if status != DS4_OK and mtp is not None and mtp in <bytes>err.message:
            shown = mtp.decode(errors="surrogateescape")
        pulse.end(status, &err, shown)
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

    def streams(self) -> bool:
        """Tell whether routed experts are read when they are needed."""
        return ds4_model_streams(self.model) != 0

    def expert_stats(self) -> dict:
        """Return the figures of the expert cache and its reads."""
        cdef ds4_expert_stats s
        cdef ds4_error err
        check(ds4_model_expert_stats(self.model, &s, &err), &err, self.path)
        out = dict(s)
        out["read_io"] = s.read_io.decode()
        return out

    def expert_block(self, uint32_t block) -> dict:
        """Return the figures of one block's experts."""
        cdef ds4_expert_block s
        cdef ds4_error err
        check(ds4_model_expert_block(self.model, block, &s, &err), &err, self.path)
        return dict(s)

    def expert_map(self, uint8_t[::1] out not None) -> None:
        """Write 0 (not in memory), 1 (being read), 2 (in memory) or 3 (in use) for every expert."""
        cdef ds4_error err
        check(ds4_model_expert_map(self.model, &out[0] if out.shape[0] else NULL, <size_t>out.shape[0], &err), &err,
              self.path)

    def expert_heat(self, float[::1] out not None) -> None:
        """Write the decayed number of selections of every expert."""
        cdef ds4_error err
        check(ds4_model_expert_heat(self.model, &out[0] if out.shape[0] else NULL, <size_t>out.shape[0], &err), &err,
              self.path)

    def expert_set_heat(self, const float[::1] values not None) -> None:
        """Replace the decayed numbers of selections."""
        cdef ds4_error err
        cdef const float *data = &values[0] if values.shape[0] else NULL
        check(ds4_model_expert_set_heat(self.model, data, <size_t>values.shape[0], &err), &err, self.path)

    def expert_preload(self, uint64_t n_slots, progress=None) -> None:
        """Read experts until this many slots are filled (0: all)."""
        cdef ds4_error err
        cdef ds4_status status
        cdef Pulse pulse = Pulse()
        cdef void *ud = <void *>pulse
        pulse.begin(progress)
        with nogil:
            status = ds4_model_expert_preload(self.model, n_slots, pulse_trampoline, ud, &err)
        pulse.end(status, &err)

    def expert_trace_start(self, uint64_t most_rows) -> None:
        """Begin to record what the routers select."""
        cdef ds4_error err
        check(ds4_model_expert_trace_start(self.model, most_rows, &err), &err, self.path)

    def expert_trace_stop(self) -> None:
        """End the record."""
        cdef ds4_error err
        check(ds4_model_expert_trace_stop(self.model, &err), &err, self.path)

    def expert_trace(self) -> tuple:
        """Return the rows as bytes of int32, their number, their length and how many did not fit."""
        cdef ds4_error err
        cdef ds4_status status
        cdef uint64_t n = 0, length = 0, lost = 0, cap
        cdef bytes rows
        check(ds4_model_expert_trace(self.model, NULL, 0, &n, &length, &lost, &err), &err, self.path)
        cap = n * length
        rows = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(cap * sizeof(int32_t)))
        status = ds4_model_expert_trace(self.model, <int32_t *>PyBytes_AsString(rows), cap, &n, &length, &lost, &err)
        check(status, &err, self.path)
        return rows, n, length, lost


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
