"""What every operator is measured on: `BENCHES` by operator name, from the operators' bench.py."""

from kernels.attention_decode.bench import BENCH as ATTENTION_DECODE
from kernels.dflash_attention.bench import BENCH as DFLASH_ATTENTION
from kernels.dflash_conv.bench import BENCH as DFLASH_CONV
from kernels.dflash_select.bench import BENCH as DFLASH_SELECT
from kernels.gated_delta_step.bench import BENCH as GATED_DELTA_STEP
from kernels.int4_matmul.bench import BENCH as INT4_MATMUL
from kernels.matmul.bench import BENCH as MATMUL
from kernels.penalize.bench import BENCH as PENALIZE
from kernels.qk_rope_store.bench import BENCH as QK_ROPE_STORE
from kernels.rms_norm.bench import BENCH as RMS_NORM
from kernels.sample.bench import BENCH as SAMPLE
from kernels.silu_mul.bench import BENCH as SILU_MUL
from tr.bench import Bench

BENCHES: dict[str, Bench] = {
    bench.operator: bench
    for bench in (
        *INT4_MATMUL,
        *MATMUL,
        *GATED_DELTA_STEP,
        *ATTENTION_DECODE,
        *QK_ROPE_STORE,
        *RMS_NORM,
        *SILU_MUL,
        *PENALIZE,
        *SAMPLE,
        *DFLASH_CONV,
        *DFLASH_ATTENTION,
        *DFLASH_SELECT,
    )
}
