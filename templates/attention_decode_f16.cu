//@ -- see schedules/attention_decode_f16.lua; a thread owns one dim of every row
//@ include("lib_vector")
//@ include("lib_spans")
//@ include("lib_softmax")
//@ local threads = 32 * warps
//@ local columns = TILE + row_limit -- cached keys of a tile, the round's own
KERNEL
{
    const u32 rows = round[0];
    const u32 thread = thread_id(), lane = lane_id(), warp = warp_id();
    f32 *score = ${shared.score};
    i32 *row_max = ${shared.row_max};
    f32 *row_sum = ${shared.row_sum}, *row_old = ${shared.row_old}, *row_new = ${shared.row_new};
    u32 *row_live = ${shared.row_live};
    const u32 base = round[1];
    const u32 last = round_last(round);
    const u32 spans = span_of(last) + 1;
    const u32 active = rows * ${group};
    wait_previous();
    ${items.open}
        block_sync();
        for (u32 row = thread; row < ${table_rows}; row += ${threads}) {
            row_max[row] = -(1 << 30);
            row_sum[row] = ${f32(0)};
            row_live[row] = 0;
        }
        for (u32 row = 0; row < active; row++)
            out[((span * ${row_limit} + row / ${group}) * ${q_heads} + head * ${group} +
                 row % ${group}) * ${HEAD} + thread] = ${f32(0)};
        const u32 begin = span_start(span);
        const u32 most = span_size(span), there = last + 1 - begin;
        const u32 tiles = ((there < most ? there : most) + ${TILE - 1}) / ${TILE};
        for (u32 tile = 0; tile < tiles; tile++) {
            const u32 first_key = begin + tile * ${TILE};
            const u32 slot = pages[first_key / ${PAGE}] * ${PAGE} + first_key % ${PAGE};
            block_sync();
            for (u32 i = thread; i < active * ${columns}; i += ${threads}) {
                const u32 row = i / ${columns}, key = i % ${columns};
                const f32 *query = q + ((row / ${group}) * ${q_heads} + head * ${group} +
                                        row % ${group}) * ${HEAD};
                const h16 *from = key < ${TILE}
                                      ? k + ((u64)(slot + key) * ${kv_heads} + head) * ${HEAD}
                                      : own_k + ((key - ${TILE}) * ${kv_heads} + head) * ${HEAD};
                f32 sum = ${f32(0)};
                for (u32 d = 0; d < ${HEAD}; d++)
                    sum = f_fma(query[d], f_from_h(from[d]), sum);
                score[row * ${s_stride} + key] = sum;
            }
            block_sync();
            for (u32 row = ${ROWS_AT_ONCE} * warp; row < active; row += ${ROWS_AT_ONCE * warps})
                row_weights(score, 0, row, active, first_key, round, lane, row_max, row_sum,
                            row_old, row_new, row_live);
            block_sync();
            for (u32 row = 0; row < active; row++) {
                if (row_live[row]) {
                    const u32 below = base > first_key ? base - first_key : 0;
                    const u32 keys = below < ${TILE} ? below : ${TILE};
                    f32 sum = ${f32(0)};
                    for (u32 key = 0; key < keys; key++)
                        sum = f_fma(score[row * ${s_stride} + key],
                                    f_from_h(v[((u64)(slot + key) * ${kv_heads} + head) *
                                                   ${HEAD} + thread]), sum);
                    for (u32 other = 0; other < rows; other++) {
                        if ((round[24 + row / ${group}] >> other & 1) &&
                            round[16 + other] - first_key < ${TILE})
                            sum = f_fma(score[row * ${s_stride} + ${TILE} + other],
                                        f_from_h(own_v[(other * ${kv_heads} + head) * ${HEAD} +
                                                       thread]), sum);
                    }
                    f32 *to = out + ((span * ${row_limit} + row / ${group}) * ${q_heads} +
                                     head * ${group} + row % ${group}) * ${HEAD} + thread;
                    *to = f_fma(sum, row_new[row], f_mul(*to, row_old[row]));
                }
            }
        }
        block_sync();
        for (u32 row = thread; row < active; row += ${threads}) {
            u32 *to = out_stat + ((span * ${row_limit} + row / ${group}) * ${q_heads} +
                                  head * ${group} + row % ${group}) * 2;
            to[0] = (u32)row_max[row];
            to[1] = f_bits(row_sum[row]);
        }
    ${items.close}
}
