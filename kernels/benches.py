"""What every operator is measured on: `BENCHES` by operator name, from the operators' bench.py."""

from kernels.accept.bench import BENCH as ACCEPT
from kernels.attention_decode.bench import BENCH as ATTENTION_DECODE
from kernels.attention_prefill.bench import BENCH as ATTENTION_PREFILL
from kernels.dflash_attention.bench import BENCH as DFLASH_ATTENTION
from kernels.dflash_conv.bench import BENCH as DFLASH_CONV
from kernels.dflash_select.bench import BENCH as DFLASH_SELECT
from kernels.embed_norm.bench import BENCH as EMBED_NORM
from kernels.gated_delta_absorb.bench import BENCH as GATED_DELTA_ABSORB
from kernels.gated_delta_chunk.bench import BENCH as GATED_DELTA_CHUNK
from kernels.gated_delta_step.bench import BENCH as GATED_DELTA_STEP
from kernels.int4_matmul.bench import BENCH as INT4_MATMUL
from kernels.int4_restore.bench import BENCH as INT4_RESTORE
from kernels.kv_restore.bench import BENCH as KV_RESTORE
from kernels.kvarn_attention.bench import BENCH as KVARN_ATTENTION
from kernels.kvarn_pack.bench import BENCH as KVARN_PACK
from kernels.kvarn_store.bench import BENCH as KVARN_STORE
from kernels.matmul.bench import BENCH as MATMUL
from kernels.penalize.bench import BENCH as PENALIZE
from kernels.qk_rope_store.bench import BENCH as QK_ROPE_STORE
from kernels.quantise_rows.bench import BENCH as QUANTISE_ROWS
from kernels.rms_norm.bench import BENCH as RMS_NORM
from kernels.sample.bench import BENCH as SAMPLE
from kernels.silu_mul.bench import BENCH as SILU_MUL
from kernels.table4_matmul.bench import BENCH as TABLE4_MATMUL
from kernels.table4_restore.bench import BENCH as TABLE4_RESTORE
from tr.bench import Bench

BENCHES: dict[str, Bench] = {
    bench.operator: bench
    for bench in (
        *INT4_MATMUL,
        *INT4_RESTORE,
        *TABLE4_MATMUL,
        *TABLE4_RESTORE,
        *MATMUL,
        *GATED_DELTA_STEP,
        *GATED_DELTA_ABSORB,
        *GATED_DELTA_CHUNK,
        *ATTENTION_DECODE,
        *ATTENTION_PREFILL,
        *KV_RESTORE,
        *QK_ROPE_STORE,
        *KVARN_STORE,
        *KVARN_PACK,
        *KVARN_ATTENTION,
        *EMBED_NORM,
        *RMS_NORM,
        *SILU_MUL,
        *QUANTISE_ROWS,
        *PENALIZE,
        *SAMPLE,
        *ACCEPT,
        *DFLASH_CONV,
        *DFLASH_ATTENTION,
        *DFLASH_SELECT,
    )
}
