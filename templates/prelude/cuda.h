/* cuda.h - the kernel primitives for NVRTC.
 *
 * The list, the meaning and the rounding of every primitive stand in README.md beside this
 * file; host.h gives the same functions for the system's C compiler. Nothing is included:
 * what plain CUDA C cannot say is inline PTX.
 *
 * Rules
 *   - Compiled with --fmad=false --ftz=false: plain + - * on float are one IEEE rounding each.
 *     Division, square root and fma name their rounding in PTX.
 *   - PTX that only computes is plain asm, so equal computations merge. PTX that touches memory
 *     or needs the whole warp is volatile, so it stays in order and in its branch.
 *   - Array arguments are registers: callers give constant counts, every loop unrolls fully.
 *   - sm_80 is the oldest target (cp.async, redux.sync, m16n8k32).
 */
// One line a primitive where it fits:
// clang-format off
#define FN __device__ __forceinline__

/* Programmatic dependent launch: waits until the launch before this one is complete, and then lets
 * the next launch's CTAs in. GPUs without it run one launch after the other. */
#if __CUDA_ARCH__ >= 900
FN void wait_previous()
{
    asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
}
#else
FN void wait_previous() {}
#endif
#define UNROLL _Pragma("unroll")
#define SHARED_ADDRESS(pointer) ((u32)__cvta_generic_to_shared(pointer))
#define GLOBAL_ADDRESS(pointer) ((u64)__cvta_generic_to_global(pointer))
#define WHOLE_WARP 0xffffffffu

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

struct f32 {
    float v;
};
struct h16 {
    u16 bits;
};
struct __align__(8) words2 {
    u32 x, y;
};
struct __align__(16) words4 {
    u32 x, y, z, w;
};

/* ---- where am I */

extern __shared__ __align__(128) u8 dynamic_shared[];
#define shared_at(type, byte_offset) ((type *)(dynamic_shared + (byte_offset)))

FN u32 thread_id() { return threadIdx.x; }

/* The value, kept: the compiler does not know how to make it again and holds on to it. */
FN u32 keep_u32(u32 value)
{
    asm volatile("" : "+r"(value));
    return value;
}
FN u32 lane_id() { return threadIdx.x & 31u; }
FN u32 warp_id() { return threadIdx.x >> 5; }
FN u32 cta_id() { return blockIdx.x; }

/* ---- f32 arithmetic */

FN f32 make_f32(float value) { return f32{value}; }
FN u32 f_bits(f32 a) { return __float_as_uint(a.v); }
FN f32 f_from_bits(u32 bits) { return make_f32(__uint_as_float(bits)); }

FN f32 f_add(f32 a, f32 b) { return make_f32(a.v + b.v); }
FN f32 f_sub(f32 a, f32 b) { return make_f32(a.v - b.v); }
FN f32 f_mul(f32 a, f32 b) { return make_f32(a.v * b.v); }

FN f32 f_div(f32 a, f32 b)
{
    f32 r;
    asm("div.rn.f32 %0, %1, %2;" : "=f"(r.v) : "f"(a.v), "f"(b.v));
    return r;
}

FN f32 f_fma(f32 a, f32 b, f32 c)
{
    f32 r;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(r.v) : "f"(a.v), "f"(b.v), "f"(c.v));
    return r;
}

FN f32 f_sqrt(f32 a)
{
    f32 r;
    asm("sqrt.rn.f32 %0, %1;" : "=f"(r.v) : "f"(a.v));
    return r;
}

FN f32 f_neg(f32 a) { return f_from_bits(f_bits(a) ^ 0x80000000u); }
FN f32 f_abs(f32 a) { return f_from_bits(f_bits(a) & 0x7fffffffu); }
FN f32 f_min(f32 a, f32 b) { return a.v < b.v ? a : b; }
FN f32 f_max(f32 a, f32 b) { return a.v > b.v ? a : b; }

/* Of IEEE 754-2019: NaN where either is, +0 above -0. */
FN f32 f_maximum(f32 a, f32 b)
{
    f32 r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r.v) : "f"(a.v), "f"(b.v));
    return r;
}

/* The bits are the unit's own. */
FN f32 f_exp2_approx(f32 a)
{
    f32 r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r.v) : "f"(a.v));
    return r;
}
FN u32 f_lt(f32 a, f32 b) { return a.v < b.v; }
FN u32 f_le(f32 a, f32 b) { return a.v <= b.v; }
FN u32 f_gt(f32 a, f32 b) { return a.v > b.v; }
FN u32 f_ge(f32 a, f32 b) { return a.v >= b.v; }
FN u32 f_eq(f32 a, f32 b) { return a.v == b.v; }
FN f32 f_select(u32 condition, f32 a, f32 b) { return condition ? a : b; }
FN u32 f_is_finite(f32 a) { return (f_bits(a) & 0x7f800000u) != 0x7f800000u; }

#define CONVERT(name, result_type, result_letter, result, argument_type, argument_letter, text)    \
    FN result_type name(argument_type a)                                                           \
    {                                                                                              \
        result_type r;                                                                             \
        asm(text " %0, %1;" : result_letter(result) : argument_letter(a));                         \
        return r;                                                                                  \
    }
CONVERT(f_from_i32, f32, "=f", r.v, i32, "r", "cvt.rn.f32.s32")
CONVERT(f_from_u32, f32, "=f", r.v, u32, "r", "cvt.rn.f32.u32")
CONVERT(f_from_i64, f32, "=f", r.v, i64, "l", "cvt.rn.f32.s64")
CONVERT(f_from_u64, f32, "=f", r.v, u64, "l", "cvt.rn.f32.u64")
CONVERT(convert_i32_rn, i32, "=r", r, float, "f", "cvt.rni.s32.f32")
CONVERT(convert_u16_rn, u16, "=h", r, float, "f", "cvt.rni.u16.f32")
CONVERT(convert_floor, f32, "=f", r.v, float, "f", "cvt.rmi.f32.f32")
CONVERT(convert_u64, u64, "=l", r, float, "f", "cvt.rzi.u64.f32")
CONVERT(convert_half, u16, "=h", r, float, "f", "cvt.rn.f16.f32")
CONVERT(convert_from_half, f32, "=f", r.v, u16, "h", "cvt.f32.f16")
#undef CONVERT

FN i32 f_to_i32_rn(f32 a) { return convert_i32_rn(a.v); }
FN u32 f_to_u16_rn(f32 a) { return convert_u16_rn(a.v); } /* the instruction saturates */
FN f32 f_floor(f32 a) { return convert_floor(a.v); }
FN u64 f_trunc_u64(f32 a) { return convert_u64(a.v); }

FN f32 f_pow2(i32 e)
{
    u32 biased = (u32)((e > 127 ? 127 : e) + 127);
    return f_from_bits(e < -126 ? 0u : biased << 23);
}

/* ---- halves and bfloat */

FN u16 h_bits(h16 a) { return a.bits; }
FN h16 h_from_bits(u16 bits) { return h16{bits}; }
FN h16 h_from_f(f32 a) { return h16{convert_half(a.v)}; }
FN f32 f_from_h(h16 a) { return convert_from_half(a.bits); }
FN f32 f_from_bf16(u16 bits) { return f_from_bits((u32)bits << 16); }

FN h16 h_add(h16 a, h16 b)
{
    h16 r;
    asm("add.rn.f16 %0, %1, %2;" : "=h"(r.bits) : "h"(a.bits), "h"(b.bits));
    return r;
}

FN h16 h_fma(h16 a, h16 b, h16 c)
{
    h16 r;
    asm("fma.rn.f16 %0, %1, %2, %3;" : "=h"(r.bits) : "h"(a.bits), "h"(b.bits), "h"(c.bits));
    return r;
}

/* Two halves a word, the low one first. */
FN u32 h2_add(u32 a, u32 b)
{
    u32 r;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

FN u32 h2_mul(u32 a, u32 b)
{
    u32 r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

FN u32 h2_from_f(f32 low, f32 high)
{
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high.v), "f"(low.v));
    return r;
}

/* ---- integers */

#define INTEGER3(name, result, type_a, type_b, type_c, text)                                       \
    FN result name(type_a a, type_b b, type_c c)                                                   \
    {                                                                                              \
        result r;                                                                                  \
        asm(text " %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));                           \
        return r;                                                                                  \
    }
INTEGER3(shift_left_wide, u32, u32, u32, u32, "shf.l.wrap.b32")
INTEGER3(shift_right_wide, u32, u32, u32, u32, "shf.r.wrap.b32")
INTEGER3(byte_permute, u32, u32, u32, u32, "prmt.b32")
INTEGER3(dot_u8s8, i32, u32, u32, i32, "dp4a.u32.s32")
INTEGER3(dot_s8s8, i32, u32, u32, i32, "dp4a.s32.s32")
#undef INTEGER3

/* PTX takes the low word first. */
FN u32 funnel_left(u32 hi, u32 lo, u32 s) { return shift_left_wide(lo, hi, s); }
FN u32 funnel_right(u32 hi, u32 lo, u32 s) { return shift_right_wide(lo, hi, s); }

FN u32 u32_mul_hi(u32 a, u32 b) { return (u32)(((u64)a * b) >> 32); }

FN u64 u64_mul_hi(u64 a, u64 b)
{
    u64 r;
    asm("mul.hi.u64 %0, %1, %2;" : "=l"(r) : "l"(a), "l"(b));
    return r;
}

FN u32 count_bits(u32 a)
{
    u32 r;
    asm("popc.b32 %0, %1;" : "=r"(r) : "r"(a));
    return r;
}

FN u32 leading_zeros(u32 a)
{
    u32 r;
    asm("clz.b32 %0, %1;" : "=r"(r) : "r"(a));
    return r;
}

/* One signed wide multiply-add reads b as signed; where its top bit is set that is b - 2^32,
 * so a * 2^32 goes back in: one multiply-add on the high word. */
FN i64 i64_mul_add(i32 a, i32 b, i64 c) { return c + (i64)a * b; }

/* ---- memory */

FN void load4_u32(const u32 *p, u32 out[4])
{
    words4 w = *(const words4 *)p;
    out[0] = w.x, out[1] = w.y, out[2] = w.z, out[3] = w.w;
}

FN void store4_u32(u32 *p, const u32 in[4]) { *(words4 *)p = words4{in[0], in[1], in[2], in[3]}; }

/* Past the SM's L1, which may hold what was there before another launch wrote. */
FN u32 load_fresh_u32(const u32 *p)
{
    u32 r;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(r) : "l"(GLOBAL_ADDRESS(p)) : "memory");
    return r;
}

FN void load4_fresh_u32(const u32 *p, u32 out[4])
{
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "l"(GLOBAL_ADDRESS(p))
                 : "memory");
}

FN void load2_u32(const u32 *p, u32 out[2])
{
    words2 w = *(const words2 *)p;
    out[0] = w.x, out[1] = w.y;
}

FN void store2_u32(u32 *p, const u32 in[2]) { *(words2 *)p = words2{in[0], in[1]}; }

FN void load_stream4_u32(const u32 *p, u32 out[4])
{
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "l"(GLOBAL_ADDRESS(p)));
}

#define ATOMIC(name, type, letter, text)                                                           \
    FN type name(type *p, type value)                                                              \
    {                                                                                              \
        type old;                                                                                  \
        asm volatile("atom.relaxed.gpu." text " %0, [%1], %2;"                                     \
                     : "=" letter(old)                                                             \
                     : "l"(p), letter(value)                                                       \
                     : "memory");                                                                  \
        return old;                                                                                \
    }
ATOMIC(atomic_add_u32, u32, "r", "add.u32")
ATOMIC(atomic_add_u64, u64, "l", "add.u64")
ATOMIC(atomic_max_i32, i32, "r", "max.s32")
ATOMIC(atomic_or_u32, u32, "r", "or.b32")
#undef ATOMIC

FN void atomic_add_u64_void(u64 *p, u64 value)
{
    asm volatile("red.relaxed.gpu.add.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
}

FN void atomic_add_u64_global(u64 *p, u64 value)
{
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(GLOBAL_ADDRESS(p)), "l"(value)
                 : "memory");
}

FN u32 load_acquire_u32(const u32 *p)
{
    u32 r;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(r) : "l"(p) : "memory");
    return r;
}

FN void store_release_u32(u32 *p, u32 value)
{
    asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

FN void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

FN void copy_async16(void *shared, const void *global)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(SHARED_ADDRESS(shared)),
                 "l"(GLOBAL_ADDRESS(global))
                 : "memory");
}

/* Constants from two addresses: they go into the instruction. */
/* A place in shared memory is a byte address of its window. As a number in a register it is made
 * once; a pointer the compiler makes anew in every loop. bytes: literals. */
FN u32 shared_place(const void *p) { return keep_u32(SHARED_ADDRESS(p)); }
#define copy_async16_at(place, place_bytes, from, from_bytes)                                      \
    asm volatile("cp.async.cg.shared.global.L2::128B [%0 + %2], [%1 + %3], 16;" ::"r"(place),      \
                 "l"(GLOBAL_ADDRESS(from)), "n"(place_bytes), "n"(from_bytes)                      \
                 : "memory")
#define load4_at(place, bytes, out)                                                                \
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4 + %5];"                                   \
                 : "=r"((out)[0]), "=r"((out)[1]), "=r"((out)[2]), "=r"((out)[3])                  \
                 : "r"(place), "n"(bytes)                                                          \
                 : "memory")
#define load2_at(place, bytes, out)                                                                \
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2 + %3];"                                           \
                 : "=r"((out)[0]), "=r"((out)[1])                                                  \
                 : "r"(place), "n"(bytes)                                                          \
                 : "memory")
#define load1_at(place, bytes, out)                                                                \
    asm volatile("ld.shared.u32 %0, [%1 + %2];"                                                    \
                 : "=r"((out)[0])                                                                  \
                 : "r"(place), "n"(bytes)                                                          \
                 : "memory")

#define store2_at(place, bytes, in)                                                                \
    asm volatile("st.shared.v2.u32 [%0 + %1], {%2, %3};" ::"r"(place), "n"(bytes), "r"((in)[0]),   \
                 "r"((in)[1])                                                                      \
                 : "memory")

FN void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
#define copy_async_wait(groups) asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory")

/* ---- barriers */

FN void block_sync() { __syncthreads(); }
FN void warp_sync() { __syncwarp(); }
FN void warpgroup_sync()
{
    asm volatile("bar.sync %0, 128;" ::"r"(1 + (threadIdx.x >> 7)) : "memory");
}

/* One word: each CTA adds 1, CTA 0 adds 2^31 - (ctas - 1) instead. When all have come the low
 * 31 bits are zero again and the top bit has flipped, which is what everyone waits for. */
FN void grid_sync(u32 *counter, u32 ctas)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 before, step = blockIdx.x == 0 ? 0x80000000u - (ctas - 1u) : 1u;
        asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], %2;"
                     : "=r"(before)
                     : "l"(counter), "r"(step)
                     : "memory");
        while (((before ^ load_acquire_u32(counter)) >> 31) == 0) {
        }
    }
    __syncthreads();
}

/* ---- warp: shuffles and sums */

FN u32 shuffle_u32(u32 v, u32 lane)
{
    u32 r;
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, %3;"
                 : "=r"(r)
                 : "r"(v), "r"(lane), "r"(WHOLE_WARP));
    return r;
}

FN u32 shuffle_xor_u32(u32 v, u32 mask)
{
    u32 r;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, %3;"
                 : "=r"(r)
                 : "r"(v), "r"(mask), "r"(WHOLE_WARP));
    return r;
}

FN f32 shuffle_f32(f32 v, u32 lane) { return f_from_bits(shuffle_u32(f_bits(v), lane)); }
FN f32 shuffle_xor_f32(f32 v, u32 mask) { return f_from_bits(shuffle_xor_u32(f_bits(v), mask)); }

FN u64 shuffle_u64(u64 v, u32 lane)
{
    u32 high = shuffle_u32((u32)(v >> 32), lane);
    return (u64)high << 32 | shuffle_u32((u32)v, lane);
}

FN u64 shuffle_xor_u64(u64 v, u32 mask)
{
    u32 high = shuffle_xor_u32((u32)(v >> 32), mask);
    return (u64)high << 32 | shuffle_xor_u32((u32)v, mask);
}

#define BUTTERFLY(name, type, shuffle, combine)                                                    \
    FN type name(type v)                                                                           \
    {                                                                                              \
        UNROLL                                                                                     \
        for (u32 mask = 16; mask > 0; mask >>= 1) {                                                \
            type other = shuffle(v, mask);                                                         \
            v = combine;                                                                           \
        }                                                                                          \
        return v;                                                                                  \
    }
BUTTERFLY(warp_sum_f32, f32, shuffle_xor_f32, f_add(v, other))
BUTTERFLY(warp_max_f32, f32, shuffle_xor_f32, f_max(v, other))
BUTTERFLY(warp_sum_u64, u64, shuffle_xor_u64, v + other)
#undef BUTTERFLY

#define REDUCE(name, type, text)                                                                   \
    FN type name(type v)                                                                           \
    {                                                                                              \
        type r;                                                                                    \
        asm volatile("redux.sync." text " %0, %1, %2;" : "=r"(r) : "r"(v), "r"(WHOLE_WARP));       \
        return r;                                                                                  \
    }
REDUCE(warp_max_i32, i32, "max.s32")
REDUCE(warp_max_u32, u32, "max.u32")
REDUCE(warp_sum_u32, u32, "add.u32")
REDUCE(warp_sum_i32, i32, "add.s32")
REDUCE(warp_or_u32, u32, "or.b32")
#undef REDUCE

FN u32 warp_ballot(u32 condition) { return __ballot_sync(WHOLE_WARP, condition != 0); }

/* ---- warp: Hadamard */

/* Stage on one bit inside the lane's four values: pairs (0,1) (2,3), or (0,2) (1,3). */
FN void hadamard_inside(f32 v[4])
{
    UNROLL
    for (u32 step = 1; step <= 2; step *= 2) {
        u32 second = step == 1 ? 2 : 1;
        f32 a = v[0], b = v[step], c = v[second], d = v[3];
        v[0] = f_add(a, b), v[step] = f_sub(a, b);
        v[second] = f_add(c, d), v[3] = f_sub(c, d);
    }
}

/* Stages between lanes. The lower lane wants own + other, the upper other - own; both are
 * fma(own, +-1, other), whose product is exact, so it rounds as the sum does. */
FN void hadamard_between(f32 v[4], u32 lane_bits)
{
    UNROLL
    for (u32 bit = 0; bit < lane_bits; bit++) {
        f32 sign = f_from_bits(0x3f800000u | ((lane_id() >> bit) & 1u) << 31);
        UNROLL
        for (u32 i = 0; i < 4; i++)
            v[i] = f_fma(v[i], sign, shuffle_xor_f32(v[i], 1u << bit));
    }
}

FN void warp_hadamard128(f32 v[4])
{
    hadamard_inside(v);
    hadamard_between(v, 5);
}

FN void warp_hadamard32(f32 v[4])
{
    hadamard_inside(v);
    hadamard_between(v, 3);
}

/* ---- tensor cores: 16x8 results, lane l holds c[i] at row l/4 + 8*(i/2), column 2*(l%4) + i%2 */

#define MMA_S32(name, types)                                                                       \
    FN void name(i32 c[4], const u32 a[4], const u32 b[2])                                         \
    {                                                                                              \
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." types ".s32 {%0, %1, %2, %3}, "      \
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                               \
                     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));          \
    }
MMA_S32(mma_s8s8, "s8.s8")
MMA_S32(mma_u8s8, "u8.s8")
#undef MMA_S32

FN void mma_f16(f32 c[4], const u32 a[4], const u32 b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0].v), "+f"(c[1].v), "+f"(c[2].v), "+f"(c[3].v)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#define MMA_MANY(name, type)                                                                       \
    FN void name##_n(u32 count, type *c, const u32 *a, const u32 *b)                               \
    {                                                                                              \
        UNROLL                                                                                     \
        for (u32 i = 0; i < count; i++)                                                            \
            name(c + 4 * i, a + 4 * i, b + 2 * i);                                                 \
    }                                                                                              \
    FN void name##_ab(u32 ma, u32 nb, type *c, const u32 *a, const u32 *b)                         \
    {                                                                                              \
        UNROLL                                                                                     \
        for (u32 i = 0; i < ma; i++) {                                                             \
            UNROLL                                                                                 \
            for (u32 j = 0; j < nb; j++)                                                           \
                name(c + 4 * (i * nb + j), a + 4 * i, b + 2 * j);                                  \
        }                                                                                          \
    }
MMA_MANY(mma_s8s8, i32)
MMA_MANY(mma_u8s8, i32)
MMA_MANY(mma_f16, f32)
#undef MMA_MANY

/* c = a*b, c += a*b with fp16 sums: c[0] has the halves of row g, c[1] of row g + 8. */
FN void mma_f16_half_first(u32 c[2], const u32 a[4], const u32 b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, "
                 "{%2, %3, %4, %5}, {%6, %7}, {%8, %8};"
                 : "=r"(c[0]), "=r"(c[1])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(0));
}

FN void mma_f16_half(u32 c[2], const u32 a[4], const u32 b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, "
                 "{%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                 : "+r"(c[0]), "+r"(c[1])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

FN void mma_f16_slice(u32 count, f32 *sums, const u32 a[8], const u32 *b)
{
    UNROLL
    for (u32 j = 0; j < count; j++) {
        u32 c[2];
        mma_f16_half_first(c, a, b + 2 * j);
        mma_f16_half(c, a + 4, b + 2 * (count + j));
        UNROLL
        for (u32 e = 0; e < 4; e++) {
            const h16 half = h_from_bits((u16)(c[e / 2] >> 16 * (e % 2)));
            sums[4 * j + e] = f_add(sums[4 * j + e], f_from_h(half));
        }
    }
}

/* The four bytes of a packed activation, each filling a register. */
FN void replicate_bytes(u32 b[4], u32 packed)
{
    UNROLL
    for (u32 i = 0; i < 4; i++)
        b[i] = byte_permute(packed, 0, 0x1111u * i);
}

/* c = a*b. */
FN void mma_u8s8_first(i32 c[4], const u32 a[4], const u32 b[2])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                 : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(0));
}

/* `begin` makes a tile's first products of both planes: added to the sums, or their beginning. */
#define MMA_MUL1(name, begin)                                                                      \
    FN void name(u32 tiles, i32 *high, i32 *low, const u32 *w, const u32 act[2], u32 rows)         \
    {                                                                                              \
        u32 h[4], l[4];                                                                            \
        replicate_bytes(h, act[0]);                                                                \
        replicate_bytes(l, act[1]);                                                                \
        UNROLL                                                                                     \
        for (u32 t = 0; t < tiles; t++) {                                                          \
            const u32 *v = w + 8 * t;                                                              \
            const u32 first[4] = {v[0], v[4], v[1], v[5]}, second[4] = {v[2], v[6], v[3], v[7]};   \
            begin(high + 4 * t, first, h);                                                         \
            begin(low + 4 * t, first, l);                                                          \
            mma_u8s8(high + 4 * t, second, h + 2);                                                 \
            mma_u8s8(low + 4 * t, second, l + 2);                                                  \
        }                                                                                          \
    }
MMA_MUL1(mma_u8s8_mul1, mma_u8s8)
MMA_MUL1(mma_u8s8_mul1_first, mma_u8s8_first)
#undef MMA_MUL1

#define MMA_MUL1_PLANE(name, begin)                                                                \
    FN void name(u32 tiles, i32 *sums, const u32 *w, u32 act)                                      \
    {                                                                                              \
        u32 b[4];                                                                                  \
        replicate_bytes(b, act);                                                                   \
        UNROLL                                                                                     \
        for (u32 t = 0; t < tiles; t++) {                                                          \
            const u32 *v = w + 8 * t;                                                              \
            const u32 first[4] = {v[0], v[4], v[1], v[5]}, second[4] = {v[2], v[6], v[3], v[7]};   \
            begin(sums + 4 * t, first, b);                                                         \
            mma_u8s8(sums + 4 * t, second, b + 2);                                                 \
        }                                                                                          \
    }
MMA_MUL1_PLANE(mma_u8s8_mul1_plane, mma_u8s8)
MMA_MUL1_PLANE(mma_u8s8_mul1_plane_first, mma_u8s8_first)
#undef MMA_MUL1_PLANE

/* The sums S of the bytes of eight products; their low and their high bytes, four a register. */
FN void split_byte_sums(u32 low[2], u32 high[2], const u32 w[8])
{
    UNROLL
    for (u32 i = 0; i < 2; i++) {
        const u32 *v = w + 4 * i;
        u32 two[2];
        UNROLL
        for (u32 j = 0; j < 2; j++) {
            const u32 second = (u32)dot_u8s8(v[2 * j + 1], 0x01010101u, 0);
            two[j] = (u32)dot_u8s8(v[2 * j], 0x01010101u, (i32)(second << 16));
        }
        low[i] = byte_permute(two[0], two[1], 0x6420);
        high[i] = byte_permute(two[0], two[1], 0x7531);
    }
}

/* A: low bytes of both k-tiles, or high bytes of both, four registers that two products share. */
#define MMA_MUL1_PAIRS(name, begin)                                                                \
    FN void name(u32 tiles, i32 *top, i32 *high, i32 *low, const u32 *w, const u32 act[2],         \
                 const u32 *w_next, const u32 act_next[2], u32 rows)                               \
    {                                                                                              \
        const u32 h[2] = {act[0], act_next[0]}, l[2] = {act[1], act_next[1]};                      \
        UNROLL                                                                                     \
        for (u32 t = 0; t < tiles; t++) {                                                          \
            u32 sl[4], sh[4];                                                                      \
            split_byte_sums(sl, sh, w + 8 * t);                                                    \
            split_byte_sums(sl + 2, sh + 2, w_next + 8 * t);                                       \
            begin(high + 4 * t, sl, h);                                                            \
            begin(top + 4 * t, sh, h);                                                             \
            begin(low + 4 * t, sl, l);                                                             \
            mma_u8s8(high + 4 * t, sh, l);                                                         \
        }                                                                                          \
    }
MMA_MUL1_PAIRS(mma_u8s8_mul1_pairs, mma_u8s8)
MMA_MUL1_PAIRS(mma_u8s8_mul1_pairs_first, mma_u8s8_first)
#undef MMA_MUL1_PAIRS

/* Two 16-bit values a register of A: slots (vl, vh) of k and of k + 1; B puts l, h or 0 against
 * each slot, so that one product collects one weight of 256. */
FN void mma_s8_pairs(u32 tiles, i32 *c2, i32 *c1, i32 *c0, const u32 *v, const u32 act[2], u32 rows)
{
    const u32 high = act[0], low = act[1];
    const u32 b2[2] = {byte_permute(high, 0, 0x1404), byte_permute(high, 0, 0x3424)};
    const u32 b1[2] = {byte_permute(high, low, 0x5140), byte_permute(high, low, 0x7362)};
    const u32 b0[2] = {byte_permute(low, 0, 0x4140), byte_permute(low, 0, 0x4342)};
    UNROLL
    for (u32 t = 0; t < tiles; t++) {
        const u32 *w = v + 8 * t;
        const u32 a[4] = {byte_permute(w[0], w[1], 0x5410), byte_permute(w[4], w[5], 0x5410),
                          byte_permute(w[2], w[3], 0x5410), byte_permute(w[6], w[7], 0x5410)};
        mma_s8s8(c2 + 4 * t, a, b2);
        mma_s8s8(c1 + 4 * t, a, b1);
        mma_s8s8(c0 + 4 * t, a, b0);
    }
}

/* ---- products of four warps (sm_90) */

#if __CUDA_ARCH__ == 900
/* What the thread has stored to shared memory may be read by products. */
FN void warpgroup_stored() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* A descriptor, the same for the warp: core matrices of 8 rows of 16 bytes follow each other along
 * k, 128 bytes apart, then along the rows, 256 apart. */
FN u64 warpgroup_matrix(u32 place)
{
    return (u64)__shfl_sync(WHOLE_WARP, (place & 0x3ffffu) >> 4, 0) | (u64)(128 >> 4) << 16 |
           (u64)(256 >> 4) << 32;
}

/* Rows of 64 columns are weights, 16 of each warp; the 16 columns both planes of 8 rows. */
FN void mma_warpgroup(i32 *high, i32 *low, u32 a0, u32 a1, u32 a2, u32 a3, u64 matrix, u32 add)
{
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %13, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.s8 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, p;\n\t}"
                 : "+r"(high[0]), "+r"(high[1]), "+r"(high[2]), "+r"(high[3]), "+r"(low[0]),
                   "+r"(low[1]), "+r"(low[2]), "+r"(low[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(matrix), "r"(add)
                 : "memory");
}

/* All products but those of the last call are complete when it returns: until then they read w. */
FN void warpgroup_mma_mul1(i32 *high, i32 *low, const u32 w[8], u64 matrix, u32 ktile, u32 add)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    mma_warpgroup(high, low, w[0], w[4], w[1], w[5], matrix + ktile * 64, add);
    mma_warpgroup(high, low, w[2], w[6], w[3], w[7], matrix + ktile * 64 + 32, 1);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}
/* The sums come from here, for the compiler too. */
FN void warpgroup_mma_wait(u32 count, i32 *high, i32 *low)
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    UNROLL
    for (u32 i = 0; i < count; i++)
        asm volatile("" : "+r"(high[i]), "+r"(low[i]));
}
#endif

#define LOAD_MATRIX_X4(name, transposed)                                                           \
    FN void name(u32 r[4], const void *shared_row)                                                 \
    {                                                                                              \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" transposed                                    \
                     ".shared.b16 {%0, %1, %2, %3}, [%4];"                                         \
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                              \
                     : "r"(SHARED_ADDRESS(shared_row))                                             \
                     : "memory");                                                                  \
    }
LOAD_MATRIX_X4(load_matrix_x4, "")
LOAD_MATRIX_X4(load_matrix_x4_trans, ".trans")
#undef LOAD_MATRIX_X4

FN void load_matrix_x2(u32 r[2], const void *shared_row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(SHARED_ADDRESS(shared_row))
                 : "memory");
}
