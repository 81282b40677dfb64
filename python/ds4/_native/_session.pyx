# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False, autotestdict=False
"""Sessions and sampling.

Every method that enters the core releases the GIL, so another Python thread may try to enter as well: `enter` turns
it away with `SessionBusyError` before it can disturb the state of the running call.
"""

cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_WRITABLE, Py_buffer
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from libcpp.vector cimport vector

from ds4._native._capi cimport (
    DS4_ACT_FLOAT,
    DS4_ACT_QUANTIZED,
    DS4_N_PARTS,
    DS4_N_STAGES,
    DS4_NUMA_INTERLEAVE,
    DS4_NUMA_NONE,
    ds4_default_threads,
    ds4_blob,
    ds4_error,
    ds4_expert_use,
    ds4_part_name,
    ds4_sample,
    ds4_drafting,
    ds4_sampling,
    ds4_session_ahead,
    ds4_session_bytes,
    ds4_session_checkpoint,
    ds4_session_checkpoints,
    ds4_session_create,
    ds4_session_draft,
    ds4_session_eval,
    ds4_session_eval_ahead,
    ds4_session_export_rows,
    ds4_session_expert_use,
    ds4_session_export_tail,
    ds4_session_fill,
    ds4_session_fork,
    ds4_session_free,
    ds4_session_get_options,
    ds4_session_import,
    ds4_session_importance,
    ds4_session_importance_start,
    ds4_session_importance_stop,
    ds4_session_load_state,
    ds4_session_logits,
    ds4_session_margins,
    ds4_session_mtp,
    ds4_session_options,
    ds4_session_options_init,
    ds4_session_pos,
    ds4_session_profile,
    ds4_session_profile_start,
    ds4_session_profile_stop,
    ds4_session_read_state,
    ds4_session_reset,
    ds4_session_restore,
    ds4_session_rewind,
    ds4_session_rows_bytes,
    ds4_session_set_pulse,
    ds4_session_set_steering,
    ds4_session_snapshot,
    ds4_session_snapshot_bytes,
    ds4_session_state_floats,
    ds4_session_steering,
    ds4_session_steps_back,
    ds4_session_sync,
    ds4_session_tail_bytes,
    ds4_session_tap_stages,
    ds4_session_tokens,
    ds4_shape,
    ds4_stage_name,
    ds4_steering,
    ds4_model_get_shape,
    ds4_status,
)
from ds4._native._core cimport Pulse, check, pulse_trampoline
from ds4._native._model cimport Model

import time

from ds4.errors import ClosedError, SessionBusyError


cdef void _tap_trampoline(void *ud, const char *stage, uint32_t layer, uint32_t pos, uint32_t n_rows,
                          uint32_t width, const float *values) noexcept with gil:
    cdef Session session = <Session>ud
    if session.tap is None or session.pulse.error is not None:
        return
    try:
        n_bytes = <Py_ssize_t>n_rows * <Py_ssize_t>width * <Py_ssize_t>sizeof(float)
        copy = PyBytes_FromStringAndSize(<const char *>values, n_bytes)
        session.tap(stage.decode(), layer, pos, n_rows, width, copy)
    except BaseException as error:  # raised again after the call, which the next pulse stops
        session.pulse.error = error


def default_threads() -> int:
    """Return the number of threads of a session that is not given one."""
    return ds4_default_threads()


@cython.final
cdef class Session:
    """One timeline of tokens over a model. A finished or failed call always leaves it usable."""

    def __init__(self, Model model not None, uint32_t n_ctx, chunk=None, threads=None, bint qat=True,
                 bint rows_f16=True, bint quantized=False, bint with_mtp=False,
                 str affinity not None="none", bint interleave=False, checkpoint_every=None, checkpoint_bytes=None):
        cdef ds4_session_options options
        cdef ds4_error err
        cdef ds4_status status
        cdef ds4_session *out = NULL
        cdef ds4_shape shape
        cdef bytes places
        if self.session != NULL:
            raise RuntimeError("this session exists already")
        ds4_session_options_init(&options)
        options.n_ctx = n_ctx
        if chunk is not None:
            options.chunk = chunk
        if threads is not None:
            options.n_threads = threads
        options.qat = qat
        options.rows_f16 = rows_f16
        options.activations = DS4_ACT_QUANTIZED if quantized else DS4_ACT_FLOAT
        options.with_mtp = with_mtp
        places = affinity.encode()
        if b"\0" in places:
            raise ValueError("affinity holds a NUL")
        options.affinity = places
        options.numa = DS4_NUMA_INTERLEAVE if interleave else DS4_NUMA_NONE
        if checkpoint_every is not None:
            options.checkpoint_every = checkpoint_every
        if checkpoint_bytes is not None:
            options.checkpoint_bytes = checkpoint_bytes
        with nogil:
            status = ds4_session_create(model.model, &options, &out, &err)
        check(status, &err)
        self.adopt(out)
        ds4_model_get_shape(model.model, &shape)
        self.n_vocab = shape.n_vocab
        self.n_expert = shape.n_expert
        self.n_embd = shape.n_embd
        self.n_ff = shape.n_ff
        self.n_layer = shape.n_layer

    cdef int adopt(self, ds4_session *made) except -1:
        """Become the owner of a session of the core."""
        self.session = made
        self.pulse = Pulse()
        ds4_session_set_pulse(made, pulse_trampoline, <void *>self.pulse)

    def __dealloc__(self):
        # A running call holds a reference to this object, so nothing can be inside the core here.
        if self.session != NULL:
            with nogil:
                ds4_session_free(self.session)

    cdef int enter(self, object progress) except -1:
        self.idle()
        self.pulse.begin(progress)
        self.thread = PyThread_get_thread_ident()
        self.running = True
        return 0

    cdef int leave(self, ds4_status status, ds4_error *err) except -1:
        self.running = False
        return self.pulse.end(status, err)

    cdef int idle(self) except -1:
        if self.closed:
            raise ClosedError("the session is closed")
        if self.running:
            raise SessionBusyError("another call is running in this session")
        return 0

    def sync(self, const int32_t[::1] tokens not None, progress=None) -> int:
        """Bring the session to `tokens`; return the number of positions that were kept."""
        cdef ds4_error err
        cdef ds4_status status
        cdef size_t n = <size_t>tokens.shape[0], n_kept = 0
        cdef const int32_t *ids = &tokens[0] if n else NULL
        self.enter(progress)
        with nogil:
            status = ds4_session_sync(self.session, ids, n, &n_kept, &err)
        self.leave(status, &err)
        return n_kept

    def eval(self, const int32_t[::1] tokens not None, float[::1] logits=None, progress=None) -> None:
        """Append `tokens`; `logits`, when given, receives the logits of every one of them, row after row."""
        cdef ds4_error err
        cdef ds4_status status
        cdef size_t n = <size_t>tokens.shape[0]
        cdef const int32_t *ids = &tokens[0] if n else NULL
        cdef float *out = NULL
        if logits is not None:
            if logits.shape[0] != <Py_ssize_t>n * self.n_vocab:
                raise ValueError(f"logits has {logits.shape[0]} values, not {n} x {self.n_vocab}")
            out = &logits[0] if n else NULL
        self.enter(progress)
        with nogil:
            status = ds4_session_eval(self.session, ids, n, out, &err)
        self.leave(status, &err)

    def eval_ahead(self, const int32_t[::1] tokens not None, progress=None) -> None:
        """Append the first of `tokens`, and compute the others ahead."""
        cdef ds4_error err
        cdef ds4_status status
        cdef size_t n = <size_t>tokens.shape[0]
        cdef const int32_t *ids = &tokens[0] if n else NULL
        self.enter(progress)
        with nogil:
            status = ds4_session_eval_ahead(self.session, ids, n, &err)
        self.leave(status, &err)

    def ahead(self) -> int:
        """Return how many tokens are ready."""
        return ds4_session_ahead(self.session)

    def draft(self, int32_t next_token, uint32_t most, float margin, float temperature, uint32_t top_k, float top_p,
              float min_p, uint64_t state) -> list:
        """Return at most `most` guesses of the MTP block at what follows `next_token`."""
        cdef ds4_error err
        cdef ds4_status status
        cdef ds4_drafting how
        cdef size_t i, n = 0
        cdef int32_t tokens[64]
        if most > 64:
            raise ValueError(f"{most} drafts are too many")
        how.most = most
        how.margin = margin
        how.sampling.temperature = temperature
        how.sampling.top_k = top_k
        how.sampling.top_p = top_p
        how.sampling.min_p = min_p
        how.rng = state
        self.enter(None)
        with nogil:
            status = ds4_session_draft(self.session, next_token, &how, tokens, &n, &err)
        self.leave(status, &err)
        return [tokens[i] for i in range(n)]

    def logits_into(self, float[::1] out not None) -> None:
        """Copy the logits of the last position into `out`, which holds n_vocab values."""
        cdef ds4_error err
        cdef const float *logits = NULL
        if out.shape[0] != self.n_vocab:
            raise ValueError(f"out has {out.shape[0]} values, not {self.n_vocab}")
        self.idle()
        check(ds4_session_logits(self.session, &logits, &err), &err)
        memcpy(&out[0], logits, <size_t>self.n_vocab * sizeof(float))

    def logits_view(self) -> LogitsView:
        """Return the logits of the last position in place, valid until the session changes."""
        cdef ds4_error err
        cdef LogitsView view = LogitsView.__new__(LogitsView)
        self.idle()
        check(ds4_session_logits(self.session, &view.data, &err), &err)
        view.shape[0] = self.n_vocab
        view.strides[0] = sizeof(float)
        view.session = self
        return view

    def mtp_into(self, int32_t next_token, float[::1] out not None) -> None:
        """Write the MTP block's logits for the token after `next_token` into `out`."""
        cdef ds4_error err
        cdef ds4_status status
        if out.shape[0] != self.n_vocab:
            raise ValueError(f"out has {out.shape[0]} values, not {self.n_vocab}")
        cdef float *logits = &out[0]
        self.enter(None)
        with nogil:
            status = ds4_session_mtp(self.session, next_token, logits, &err)
        self.leave(status, &err)

    def pos(self) -> int:
        """Return the number of positions held."""
        return ds4_session_pos(self.session)

    def tokens(self) -> list:
        """Return the ids held. Not while another thread's call may be changing them."""
        if self.running and self.thread != PyThread_get_thread_ident():
            raise SessionBusyError("another call is running in this session")
        cdef const int32_t *ids = ds4_session_tokens(self.session)
        cdef size_t i, n = ds4_session_pos(self.session)
        return [ids[i] for i in range(n)]

    def options(self) -> dict:
        """Return the settings in force, defaults filled in."""
        cdef ds4_session_options o
        ds4_session_get_options(self.session, &o)
        return {
            "n_ctx": o.n_ctx,
            "chunk": o.chunk,
            "threads": o.n_threads,
            "qat": o.qat != 0,
            "rows_f16": o.rows_f16 != 0,
            "quantized": o.activations == DS4_ACT_QUANTIZED,
            "with_mtp": o.with_mtp != 0,
            "affinity": o.affinity.decode(),
            "interleave": o.numa == DS4_NUMA_INTERLEAVE,
            "checkpoint_every": o.checkpoint_every,
            "checkpoint_bytes": o.checkpoint_bytes,
        }

    def n_bytes(self) -> int:
        """Return the memory held by caches, scratch and checkpoints, in bytes."""
        return ds4_session_bytes(self.session)

    def expert_use(self) -> dict:
        """Return what streamed experts cost this session."""
        cdef ds4_expert_use use
        cdef ds4_error err
        self.idle()
        check(ds4_session_expert_use(self.session, &use, &err), &err)
        return dict(use)

    def margins(self) -> tuple:
        """Return the smallest score gaps (indexer, router) at a top-k boundary in the last call."""
        cdef float indexer = 0, router = 0
        self.idle()
        ds4_session_margins(self.session, &indexer, &router)
        return indexer, router

    def checkpoint(self) -> None:
        """Keep the present position as a place to go back to."""
        cdef ds4_error err
        cdef ds4_status status
        self.enter(None)
        with nogil:
            status = ds4_session_checkpoint(self.session, &err)
        self.leave(status, &err)

    def checkpoints(self) -> list:
        """Return the positions to go back to, ascending."""
        cdef ds4_error err
        cdef size_t i, n = 0
        cdef vector[uint32_t] places
        self.idle()
        check(ds4_session_checkpoints(self.session, NULL, 0, &n, &err), &err)
        places.resize(n)
        check(ds4_session_checkpoints(self.session, places.data(), n, &n, &err), &err)
        return [places[i] for i in range(places.size())]

    def steps_back(self) -> int:
        """Return how many positions can be taken back without a checkpoint."""
        return ds4_session_steps_back(self.session)

    def rewind(self, size_t pos) -> int:
        """Go back to `pos`, or to the newest checkpoint before it; return the position reached."""
        cdef ds4_error err
        cdef ds4_status status
        cdef size_t reached = 0
        self.enter(None)
        with nogil:
            status = ds4_session_rewind(self.session, pos, &reached, &err)
        self.leave(status, &err)
        return reached

    def fork(self) -> Session:
        """Return an independent session with the same state."""
        cdef ds4_error err
        cdef ds4_status status
        cdef ds4_session *out = NULL
        cdef Session other = Session.__new__(Session)
        self.enter(None)
        with nogil:
            status = ds4_session_fork(self.session, &out, &err)
        if out != NULL:
            other.adopt(out)
        self.leave(status, &err)
        other.n_vocab = self.n_vocab
        other.n_expert = self.n_expert
        other.n_embd = self.n_embd
        other.n_ff = self.n_ff
        other.n_layer = self.n_layer
        return other

    def reset(self) -> None:
        """Forget everything."""
        cdef ds4_error err
        cdef ds4_status status
        self.enter(None)
        with nogil:
            status = ds4_session_reset(self.session, &err)
        self.leave(status, &err)

    def set_tap(self, tap, uint32_t stages=1) -> None:
        """Call `tap(stage, layer, pos, n_rows, width, bytes)` for the values of stages (bits); None ends it."""
        cdef ds4_error err
        self.idle()
        self.tap = tap
        if tap is None:
            check(ds4_session_tap_stages(self.session, 0, NULL, NULL, &err), &err)
        else:
            check(ds4_session_tap_stages(self.session, stages, _tap_trampoline, <void *>self, &err), &err)

    def set_steering(self, list directions not None) -> None:
        """Steer by `(values [n_layer, n_embd], ffn scale, attn scale)` from now on; an empty list ends it."""
        cdef ds4_error err
        cdef ds4_status status
        cdef vector[ds4_steering] all
        cdef ds4_steering one
        cdef const float[:, ::1] values
        cdef list held = []
        one.struct_size = sizeof(ds4_steering)
        for values, ffn, attn in directions:
            held.append(values)
            one.n_layer = <uint32_t>values.shape[0]
            one.n_embd = <uint32_t>values.shape[1]
            one.values = &values[0, 0] if values.shape[0] and values.shape[1] else NULL
            one.ffn = ffn
            one.attn = attn
            all.push_back(one)
        self.enter(None)
        with nogil:
            status = ds4_session_set_steering(self.session, all.data(), all.size(), &err)
        self.leave(status, &err)

    def steering(self) -> tuple:
        """Return the digest of the steering, the positions from 0 on computed with it, the digest of all positions."""
        cdef ds4_error err
        cdef uint64_t present = 0, held = 0
        cdef size_t n_kept = 0
        self.idle()
        check(ds4_session_steering(self.session, &present, &n_kept, &held, &err), &err)
        return present, n_kept, held

    def importance_start(self) -> None:
        """Gather importance statistics from now on, beginning at zero."""
        cdef ds4_error err
        cdef ds4_status status
        self.enter(None)
        with nogil:
            status = ds4_session_importance_start(self.session, &err)
        self.leave(status, &err)

    def importance_stop(self) -> None:
        """Gather no more, and free the statistics."""
        cdef ds4_error err
        cdef ds4_status status
        self.enter(None)
        with nogil:
            status = ds4_session_importance_stop(self.session, &err)
        self.leave(status, &err)

    def importance_into(self, uint32_t layer, double[::1] sum_in not None, double[::1] sum_mid not None,
                        uint64_t[::1] counts not None) -> None:
        """Copy the statistics of a layer: n_expert * n_embd sums, n_expert * n_ff sums, n_expert counts."""
        cdef ds4_error err
        cdef ds4_status status
        if (sum_in.shape[0] != self.n_expert * self.n_embd or sum_mid.shape[0] != self.n_expert * self.n_ff
                or counts.shape[0] != self.n_expert):
            raise ValueError(f"room for {sum_in.shape[0]} and {sum_mid.shape[0]} sums and {counts.shape[0]} counts, "
                             f"not {self.n_expert} times {self.n_embd}, {self.n_ff} and 1")
        self.enter(None)
        with nogil:
            status = ds4_session_importance(self.session, layer, &sum_in[0], &sum_mid[0], &counts[0], &err)
        self.leave(status, &err)

    def profile_start(self) -> None:
        """Take the times of parts from now on, beginning at zero."""
        cdef ds4_error err
        cdef ds4_status status
        self.enter(None)
        with nogil:
            status = ds4_session_profile_start(self.session, &err)
        self.leave(status, &err)

    def profile_stop(self) -> None:
        """Take no more times, and forget them."""
        cdef ds4_error err
        cdef ds4_status status
        self.enter(None)
        with nogil:
            status = ds4_session_profile_stop(self.session, &err)
        self.leave(status, &err)

    def profile_into(self, uint32_t phase, uint64_t[::1] ns not None, uint64_t[::1] entries not None) -> int:
        """Copy (n_layer + 2) * n_parts times and entries of a phase; return its number of tokens."""
        cdef ds4_error err
        cdef ds4_status status
        cdef uint64_t tokens = 0
        cdef Py_ssize_t n = (<Py_ssize_t>self.n_layer + 2) * <Py_ssize_t>DS4_N_PARTS
        if ns.shape[0] != n or entries.shape[0] != n:
            raise ValueError(f"room for {ns.shape[0]} times and {entries.shape[0]} entries, not {n}")
        self.enter(None)
        with nogil:
            status = ds4_session_profile(self.session, phase, &tokens, &ns[0], &entries[0], &err)
        self.leave(status, &err)
        return tokens

    def fill(self, size_t n, uint64_t seed) -> None:
        """Hold `n` positions of pseudo-random state."""
        cdef ds4_error err
        cdef ds4_status status
        self.enter(None)
        with nogil:
            status = ds4_session_fill(self.session, n, seed, &err)
        self.leave(status, &err)

    def snapshot(self) -> bytes:
        """Return the session's state as one byte string."""
        cdef ds4_error err
        cdef ds4_status status
        cdef uint64_t n_bytes = 0
        self.idle()
        cdef uint64_t cap = ds4_session_snapshot_bytes(self.session)
        cdef bytes out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>cap)
        cdef char *buf = PyBytes_AsString(out)
        self.enter(None)
        with nogil:
            status = ds4_session_snapshot(self.session, buf, cap, &n_bytes, &err)
        self.leave(status, &err)
        return out if n_bytes == cap else out[:n_bytes]

    def restore(self, const uint8_t[::1] data not None) -> None:
        """Bring back the state of a snapshot."""
        cdef ds4_error err
        cdef ds4_status status
        cdef uint64_t n_bytes = <uint64_t>data.shape[0]
        cdef const uint8_t *buf = &data[0] if n_bytes else NULL
        self.enter(None)
        with nogil:
            status = ds4_session_restore(self.session, buf, n_bytes, &err)
        self.leave(status, &err)

    def export_rows(self, uint32_t start, uint32_t stop) -> bytes:
        """Return the packed rows of the groups that close in positions (start, stop]."""
        cdef ds4_error err
        cdef ds4_status status
        cdef uint64_t n_bytes = 0
        self.idle()
        cdef uint64_t cap = ds4_session_rows_bytes(self.session, start, stop)
        cdef bytes out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>cap)
        cdef char *buf = PyBytes_AsString(out)
        self.enter(None)
        with nogil:
            status = ds4_session_export_rows(self.session, start, stop, buf, cap, &n_bytes, &err)
        self.leave(status, &err)
        return out[:n_bytes]

    def export_tail(self, uint32_t at) -> bytes:
        """Return the packed tail at the present position or at a checkpoint."""
        cdef ds4_error err
        cdef ds4_status status
        cdef uint64_t n_bytes = 0
        self.idle()
        cdef uint64_t cap = ds4_session_tail_bytes(self.session, at)
        cdef bytes out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>cap)
        cdef char *buf = PyBytes_AsString(out)
        self.enter(None)
        with nogil:
            status = ds4_session_export_tail(self.session, at, buf, cap, &n_bytes, &err)
        self.leave(status, &err)
        return out[:n_bytes]

    def import_state(self, const int32_t[::1] tokens not None, list rows not None,
                     const uint8_t[::1] tail not None) -> int:
        """Bring the session to where `tail` was taken; return its position."""
        cdef ds4_error err
        cdef ds4_status status
        cdef size_t n = <size_t>tokens.shape[0], pos = 0
        cdef const int32_t *ids = &tokens[0] if n else NULL
        cdef vector[ds4_blob] parts
        cdef ds4_blob end
        cdef const uint8_t[::1] part
        for part in rows:
            end.data = &part[0] if part.shape[0] else NULL
            end.n_bytes = <uint64_t>part.shape[0]
            parts.push_back(end)
        end.data = &tail[0] if tail.shape[0] else NULL
        end.n_bytes = <uint64_t>tail.shape[0]
        self.enter(None)
        with nogil:
            status = ds4_session_import(self.session, ids, n, parts.data(), parts.size(), &end, &pos, &err)
        self.leave(status, &err)
        return pos

    def state_floats(self) -> int:
        """Return the number of values of the state at the present position."""
        self.idle()
        return ds4_session_state_floats(self.session)

    def read_state(self, float[::1] out not None) -> None:
        """Write the state at the present position to `out`."""
        cdef ds4_error err
        cdef ds4_status status
        cdef uint64_t n = <uint64_t>out.shape[0]
        cdef float *values = &out[0] if n else NULL
        self.enter(None)
        with nogil:
            status = ds4_session_read_state(self.session, values, n, &err)
        self.leave(status, &err)

    def load_state(self, const int32_t[::1] tokens not None, const float[::1] values not None) -> None:
        """Put the session where a state was read."""
        cdef ds4_error err
        cdef ds4_status status
        cdef size_t n = <size_t>tokens.shape[0]
        cdef uint64_t n_floats = <uint64_t>values.shape[0]
        cdef const int32_t *ids = &tokens[0] if n else NULL
        cdef const float *data = &values[0] if n_floats else NULL
        self.enter(None)
        with nogil:
            status = ds4_session_load_state(self.session, ids, n, data, n_floats, &err)
        self.leave(status, &err)

    def cancel(self) -> None:
        """Stop the call that is running, from any thread. Without one, do nothing.

        The request travels by the pulse and not by ds4_session_cancel, which would miss a call that has begun here but
        not yet in the core.
        """
        if self.running:
            self.pulse.stop = True

    def shutdown(self) -> None:
        """Refuse calls from now on, stop the one that is running and wait until it has returned.

        The memory is freed with the last reference to this object. Called from inside a callback of the running
        call it cannot wait; then that call's return frees.
        """
        self.closed = True
        while self.running and self.thread != PyThread_get_thread_ident():
            self.cancel()
            time.sleep(0.001)
        if self.running:
            self.cancel()


@cython.final
cdef class LogitsView:
    """Logits [n_vocab] float32 of a session as a read-only buffer."""

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if flags & PyBUF_WRITABLE:
            raise BufferError("logits are read-only")
        buffer.buf = <void *>self.data
        buffer.obj = self
        buffer.len = self.shape[0] * <Py_ssize_t>sizeof(float)
        buffer.itemsize = sizeof(float)
        buffer.readonly = 1
        buffer.ndim = 1
        buffer.format = NULL
        if flags & PyBUF_FORMAT:
            buffer.format = "f"
        buffer.shape = self.shape
        buffer.strides = self.strides
        buffer.suboffsets = NULL
        buffer.internal = NULL


def stage_names() -> list:
    """Return the names of the stages that a tap can see, in the order of their bits."""
    return [ds4_stage_name(i).decode() for i in range(DS4_N_STAGES)]


def part_names() -> list:
    """Return the names of the parts of a profile, in its order."""
    cdef uint32_t i
    return [ds4_part_name(i).decode() for i in range(DS4_N_PARTS)]


def sample(const float[::1] logits not None, float temperature, uint32_t top_k, float top_p, float min_p,
           uint64_t state) -> tuple:
    """Draw one token; return (token, log-probability, state of the generator after the draw)."""
    cdef ds4_error err
    cdef ds4_status status
    cdef ds4_sampling p
    cdef int32_t token = -1
    cdef float logprob = 0
    cdef size_t n = <size_t>logits.shape[0]
    cdef const float *values = &logits[0] if n else NULL
    p.temperature = temperature
    p.top_k = top_k
    p.top_p = top_p
    p.min_p = min_p
    with nogil:
        status = ds4_sample(values, n, &p, &state, &token, &logprob, &err)
    check(status, &err)
    return token, logprob, state
