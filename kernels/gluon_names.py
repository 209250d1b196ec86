"""What Triton 3.6 and 3.9 name differently in Gluon, under one name each."""

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import tma

#: elements of global memory to shared memory, each thread its own, in groups
copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
#: a descriptor's box to shared memory; an mbarrier counts its bytes
bulk_copy = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
#: the same shared memory as another dtype, shape and layout
viewed = getattr(gl.shared_memory_descriptor, "reinterpret", None) or (
    gl.shared_memory_descriptor._reinterpret
)
#: of all threads of a partition
barrier = getattr(gl, "barrier", None) or gl.thread_barrier
