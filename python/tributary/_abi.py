"""``session/tributary.h`` in ctypes: its structs and the signatures of its functions, and nothing else."""

from __future__ import annotations

import ctypes as c

ALL_TENSORS = c.c_size_t(-1).value

NoteCallback = c.CFUNCTYPE(None, c.c_char_p, c.c_void_p)


class CTensor(c.Structure):
    _fields_ = [
        ("size", c.c_size_t),
        ("name", c.c_char_p),
        ("shape", c.POINTER(c.c_uint64)),
        ("dimensions", c.c_uint32),
        ("group", c.c_uint32),
        ("holders", c.POINTER(c.c_uint32)),
        ("holder_count", c.c_uint32),
    ]


class COptions(c.Structure):
    _fields_ = [
        ("size", c.c_size_t),
        ("socket", c.c_char_p),
        ("job", c.c_char_p),
        ("tensors", c.POINTER(CTensor)),
        ("tensor_count", c.c_size_t),
        ("from_environment", c.c_uint32),
        ("rank", c.c_uint32),
        ("world_size", c.c_uint32),
        ("local_rank", c.c_uint32),
        ("local_world_size", c.c_uint32),
        ("node_rank", c.c_uint32),
        ("attach_timeout_ms", c.c_uint32),
        ("gradients_move", c.c_uint32),
        ("device", c.c_int32),
        ("computes_with", c.c_char_p),
        ("note", NoteCallback),
        ("note_context", c.c_void_p),
        ("recovery", c.c_void_p),
        ("model_rank", c.c_uint32),
        ("stops", c.POINTER(c.c_int)),
    ]


class CView(c.Structure):
    _fields_ = [
        ("size", c.c_size_t),
        ("rank", c.c_uint32),
        ("world_size", c.c_uint32),
        ("local_rank", c.c_uint32),
        ("local_world_size", c.c_uint32),
        ("node_rank", c.c_uint32),
        ("fresh", c.c_uint32),
        ("on_device", c.c_uint32),
        ("resume_round", c.c_uint64),
        ("job", c.c_uint64),
        ("first_state", c.c_uint32),
    ]


class CPiece(c.Structure):
    _fields_ = [("data", c.c_void_p), ("size", c.c_size_t)]


class CKeptState(c.Structure):
    _fields_ = [
        ("size", c.c_size_t),
        ("state", c.c_void_p),
        ("state_size", c.c_size_t),
        ("large", c.c_void_p),
        ("large_size", c.c_size_t),
        ("whole", c.c_int32),
    ]


class CValue(c.Structure):
    _fields_ = [("data", c.c_void_p), ("size", c.c_size_t)]


class CGate(c.Structure):
    _fields_ = [
        ("size", c.c_size_t),
        ("known", c.c_uint32),
        ("skipped", c.c_uint32),
        ("norm", c.c_double),
        ("coefficient", c.c_double),
        ("loss_scale", c.c_float),
    ]


class CStats(c.Structure):
    _fields_ = [
        ("size", c.c_size_t),
        ("reduce_ns", c.c_uint64),
        ("bytes_pushed", c.c_uint64),
        ("bytes_pulled", c.c_uint64),
    ]


_session = c.c_void_p
_status = c.c_int32

# name: (result, arguments)
SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "tributary_version": (c.c_char_p, []),
    "tributary_last_error": (c.c_char_p, []),
    "tributary_status_name": (c.c_char_p, [_status]),
    "tributary_recovery_handle_create": (c.c_void_p, []),
    "tributary_recovery_handle_destroy": (None, [c.c_void_p]),
    "tributary_retry": (_status, [c.c_void_p, _status, c.c_char_p, c.c_uint32, c.POINTER(c.c_uint32)]),
    "tributary_attach": (_status, [c.POINTER(COptions), c.POINTER(c.c_void_p)]),
    "tributary_destroy": (None, [_session]),
    "tributary_get_view": (_status, [_session, c.POINTER(CView)]),
    "tributary_initial": (c.c_void_p, [_session, c.c_size_t]),
    "tributary_start": (_status, [_session]),
    "tributary_gradient": (c.c_void_p, [_session, c.c_size_t]),
    "tributary_parameters": (c.c_void_p, [_session, c.c_size_t]),
    "tributary_hold_parameters": (c.c_void_p, [_session]),
    "tributary_release_parameters": (None, [c.c_void_p]),
    "tributary_keep": (_status, [_session, c.c_uint64, c.c_char_p, c.c_size_t]),
    "tributary_kept": (_status, [_session, c.POINTER(c.c_void_p), c.POINTER(c.c_size_t)]),
    "tributary_keep_large": (
        _status,
        [_session, c.c_uint64, c.c_char_p, c.c_size_t, c.POINTER(CPiece), c.c_size_t, c.c_int32],
    ),
    "tributary_wanted_round": (c.c_uint64, [_session]),
    "tributary_get_kept": (_status, [_session, c.POINTER(CKeptState)]),
    "tributary_get_kept_of_first": (_status, [_session, c.POINTER(CKeptState)]),
    "tributary_last_round": (_status, [_session, c.c_uint64]),
    "tributary_log": (_status, [_session, c.c_uint64, c.c_char_p, c.c_double, c.c_uint64]),
    "tributary_group_settings": (_status, [_session, c.c_uint32, c.c_double, c.c_double]),
    "tributary_ready": (_status, [_session, c.c_size_t, c.c_uint64, c.c_double]),
    "tributary_ready_after": (_status, [_session, c.c_size_t, c.c_uint64, c.c_double, c.c_void_p]),
    "tributary_wait": (_status, [_session, c.c_size_t, c.POINTER(c.c_int)]),
    "tributary_gather": (
        _status,
        [
            _session,
            c.c_uint64,
            c.c_uint32,
            c.c_char_p,
            c.c_size_t,
            c.POINTER(c.POINTER(CValue)),
            c.POINTER(c.c_size_t),
            c.POINTER(c.c_int),
        ],
    ),
    "tributary_gathered": (_status, [_session, c.c_uint64, c.c_uint32, c.POINTER(CValue), c.c_size_t]),
    "tributary_get_gate": (_status, [_session, c.c_uint64, c.POINTER(CGate)]),
    "tributary_stop_reason": (c.c_char_p, [_session]),
    "tributary_get_stats": (_status, [_session, c.POINTER(CStats)]),
    "tributary_finish": (_status, [_session, c.c_int, c.c_char_p]),
    "tributary_saved": (_status, [_session]),
}
