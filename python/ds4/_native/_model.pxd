from ds4._native._capi cimport ds4_model


cdef class Model:
    cdef ds4_model *model
    cdef str path
