/* host.h - the primitives for the host device: C for the system's compiler.
 *
 * A kernel here is one C function that runs once a thread of a CTA, each on its
 * own stack (a fiber). Fibers of a warp take turns; a warp collective is a
 * rendezvous: every lane leaves a pointer to its operands (on its own stack) in
 * its slot of the warp and gives way to the next lane. The last lane to arrive
 * computes for all 32 and goes on; the others find their results in their own
 * operands when their turn comes:
 *
 *     lane 0  |--- deposit, give way ->                         result, go on ...
 *     lane 1                            |--- deposit, give way ->
 *     lane 31                                   |--- deposit, compute for all, go on ->
 *
 * Because operands stay on the lanes' stacks nothing is copied, and a collective
 * that takes a whole tile costs one round of switches.
 *
 * Bits: every f32 operation is one C operation on float, compiled with
 * -ffp-contract=off and without the compiler's own vectors (host_compile.c says
 * why); the rounding mode is nearest even and denormals are kept. What has to be
 * fast uses vector types by hand.
 * Sums of mma_f16 start from c and add the 16 products in ascending k, one
 * rounding each (products of halves are exact in binary32).
 *
 * The program provides what is declared `extern` here (core/device/host_fiber.c).
 * Names that start with elpis_ are not for kernels.
 */
// One line a primitive where it fits:
// clang-format off
typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;
typedef __UINTPTR_TYPE__ uintptr;
typedef struct { float v; } f32;
typedef struct { u16 bits; } h16;

#define FN inline __attribute__((unused))
#define ELPIS_COLD __attribute__((noinline, unused, no_sanitize("thread")))

/* ---- the program's side */

struct elpis_warp {
    void *slot[32]; /* operands of the lanes that wait in the current collective */
};
struct elpis_thread {
    u32 thread, lane, warp_index, cta;
    u8 *shared;              /* the CTA's dynamic shared memory */
    struct elpis_warp *warp;
    u8 *scratch; /* 64 KiB of the worker, for the lane that computes for all */
};
extern __thread struct elpis_thread *elpis_self __attribute__((tls_model("initial-exec")));
/* Leaves the operands, gives way. 1: this lane came last and has to compute for all. */
extern u32 elpis_meet(void *operands, const char *name);
extern void elpis_block_sync(void);
extern void elpis_warpgroup_sync(void);
extern void elpis_grid_sync(u32 *counter, u32 ctas);
extern void elpis_acquired(const void *p); /* a load that another CTA may answer: give way */
extern void elpis_released(const void *p); /* before a store that another CTA may wait for */
extern void elpis_copy_async(void *shared, const void *global);
extern void elpis_copy_commit(void);
extern void elpis_copy_wait(u32 pending);
extern void elpis_note_read(const void *address, u32 size);
extern void elpis_wait_previous(void);
extern void elpis_past_l1(u32 begins);

#define ELPIS_EACH_LANE(type, name)                                                               \
    struct elpis_warp *warp_ = elpis_self->warp;                                                  \
    for (u32 lane = 0; lane < 32; lane++)                                                         \
        for (type *name = (type *)warp_->slot[lane], *once_ = name; once_; once_ = 0)

/* ---- where am I */

static FN u32 thread_id(void) { return elpis_self->thread; }
static FN u32 lane_id(void) { return elpis_self->lane; }
static FN u32 warp_id(void) { return elpis_self->warp_index; }
static FN u32 cta_id(void) { return elpis_self->cta; }
#define shared_at(type, byte_offset) ((type *)(void *)(elpis_self->shared + (byte_offset)))

/* ---- f32 arithmetic */

static FN u32 f_bits(f32 a)
{
    u32 bits;
    __builtin_memcpy(&bits, &a.v, sizeof bits);
    return bits;
}
static FN f32 f_from_bits(u32 bits)
{
    f32 a;
    __builtin_memcpy(&a.v, &bits, sizeof bits);
    return a;
}
static FN f32 f_add(f32 a, f32 b) { return (f32){a.v + b.v}; }
static FN f32 f_sub(f32 a, f32 b) { return (f32){a.v - b.v}; }
static FN f32 f_mul(f32 a, f32 b) { return (f32){a.v * b.v}; }
static FN f32 f_div(f32 a, f32 b) { return (f32){a.v / b.v}; }
static FN f32 f_sqrt(f32 a) { return (f32){__builtin_sqrtf(a.v)}; }
static FN f32 f_neg(f32 a) { return (f32){-a.v}; }
static FN f32 f_abs(f32 a) { return (f32){__builtin_fabsf(a.v)}; }

/* The sum of a and b rounded to odd: an exact tie can no longer appear when the
 * result is rounded again to a shorter format (Boldo and Melquiond, 2008). */
static FN double elpis_add_to_odd(double a, double b)
{
    double sum = a + b, b_part = sum - a;
    double lost = (a - (sum - b_part)) + (b - b_part);
    u64 bits;
    __builtin_memcpy(&bits, &sum, sizeof bits);
    if (lost != 0 && !(bits & 1) && (bits >> 52 & 0x7ff) != 0x7ff)
        bits += (lost > 0) == (sum > 0) ? 1 : -1;
    __builtin_memcpy(&sum, &bits, sizeof bits);
    return sum;
}
static FN f32 f_fma(f32 a, f32 b, f32 c)
{
#if defined(__FMA__) || defined(__aarch64__)
    return (f32){__builtin_fmaf(a.v, b.v, c.v)};
#else
    return (f32){(float)elpis_add_to_odd((double)a.v * b.v, c.v)};
#endif
}
static FN f32 f_min(f32 a, f32 b) { return a.v < b.v ? a : b; }
static FN f32 f_max(f32 a, f32 b) { return a.v > b.v ? a : b; }
static FN f32 f_maximum(f32 a, f32 b)
{
    if (a.v != a.v || b.v != b.v)
        return f_from_bits(0x7fffffffu);
    if (a.v == b.v)
        return f_from_bits(f_bits(a) & f_bits(b));
    return a.v > b.v ? a : b;
}
static FN f32 f_exp2(f32 a); /* math.h */
static FN f32 f_exp2_approx(f32 a) { return f_exp2(a); }
static FN u32 f_lt(f32 a, f32 b) { return a.v < b.v; }
static FN u32 f_le(f32 a, f32 b) { return a.v <= b.v; }
static FN u32 f_gt(f32 a, f32 b) { return a.v > b.v; }
static FN u32 f_ge(f32 a, f32 b) { return a.v >= b.v; }
static FN u32 f_eq(f32 a, f32 b) { return a.v == b.v; }
static FN f32 f_select(u32 condition, f32 a, f32 b) { return condition ? a : b; }
static FN u32 f_is_finite(f32 a) { return (f_bits(a) & 0x7f800000u) != 0x7f800000u; }
static FN f32 f_from_i32(i32 a) { return (f32){(float)a}; }
static FN f32 f_from_u32(u32 a) { return (f32){(float)a}; }
static FN f32 f_from_i64(i64 a) { return (f32){(float)a}; }
static FN f32 f_from_u64(u64 a) { return (f32){(float)a}; }

/* Adding and taking away 1.5 * 2^23 rounds |a| <= 2^22 to an integer, to nearest even;
 * larger values convert through double, where 1.5 * 2^52 does the same. */
static FN i32 f_to_i32_rn(f32 a)
{
    double shifted = (double)a.v + 0x1.8p52;
    u64 bits;
    __builtin_memcpy(&bits, &shifted, sizeof bits);
    return (i32)(u32)bits;
}
static FN u32 f_to_u16_rn(f32 a)
{
    const i32 whole = f_to_i32_rn(a);
    return whole < 0 ? 0u : whole > 65535 ? 65535u : (u32)whole;
}
static FN f32 f_floor(f32 a)
{
    if (!(__builtin_fabsf(a.v) < 0x1p23f))
        return a;
    float whole = (float)(i32)a.v;
    whole = whole > a.v ? whole - 1.0f : whole;
    return (f32){__builtin_copysignf(whole, a.v)};
}
static FN u64 f_trunc_u64(f32 a) { return (u64)(i64)a.v; }
static FN f32 f_pow2(i32 e)
{
    if (e > 127)
        e = 127;
    return f_from_bits(e < -126 ? 0 : (u32)(e + 127) << 23);
}

/* ---- halves and bfloat */

static FN u16 h_bits(h16 a) { return a.bits; }
static FN h16 h_from_bits(u16 bits) { return (h16){bits}; }
static FN f32 f_from_bf16(u16 a) { return f_from_bits((u32)a << 16); }

/* 2^112 moves the exponent from binary16's bias to binary32's, exactly, for
 * denormals too; infinities and NaN get their exponent by hand. */
static FN f32 f_from_h(h16 a)
{
    u32 magnitude = a.bits & 0x7fffu, sign = (u32)(a.bits & 0x8000u) << 16;
    u32 bits = f_bits((f32){f_from_bits(magnitude << 13).v * 0x1p112f});
    bits |= magnitude >= 0x7c00u ? 0x7f800000u : 0;
    return f_from_bits(bits | sign);
}
/* Normal results: add half a unit minus one, plus the last kept bit, then cut. Below 2^-14 an
 * addition of 0.5 lines the value up with binary16's denormal unit 2^-24 and rounds it. */
static FN h16 h_from_f(f32 a)
{
    u32 bits = f_bits(a), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    u32 normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13;
    u32 small = f_bits((f32){f_from_bits(magnitude).v + 0.5f}) - 0x3f000000u;
    u32 result = magnitude < 0x38800000u ? small : normal;
    result = magnitude >= 0x477ff000u ? 0x7c00u : result;
    result = magnitude > 0x7f800000u ? 0x7e00u : result;
    return (h16){(u16)(result | sign)};
}
static FN h16 h_add(h16 a, h16 b)
{
    return h_from_f((f32){f_from_h(a).v + f_from_h(b).v});
}
/* a * b is exact in binary32; the sum is rounded to odd in binary64, then cut to binary32
 * again to odd, so that only the last step rounds. */
static FN h16 h_fma(h16 a, h16 b, h16 c)
{
    double sum = elpis_add_to_odd((double)(f_from_h(a).v * f_from_h(b).v), f_from_h(c).v);
    u64 bits, dropped = 0x1fffffffu;
    __builtin_memcpy(&bits, &sum, sizeof bits);
    u32 sticky = (bits & dropped) != 0;
    bits &= ~dropped;
    __builtin_memcpy(&sum, &bits, sizeof bits);
    f32 shorter = {(float)sum};
    return h_from_f(f_is_finite(shorter) ? f_from_bits(f_bits(shorter) | sticky) : shorter);
}

/* Products of halves are exact in binary32. */
static FN u32 h2_from_f(f32 low, f32 high)
{
    return (u32)h_from_f(low).bits | (u32)h_from_f(high).bits << 16;
}
static FN f32 elpis_low_half(u32 a) { return f_from_h((h16){(u16)a}); }
static FN f32 elpis_high_half(u32 a) { return f_from_h((h16){(u16)(a >> 16)}); }
static FN u32 h2_add(u32 a, u32 b)
{
    return h2_from_f(f_add(elpis_low_half(a), elpis_low_half(b)),
                     f_add(elpis_high_half(a), elpis_high_half(b)));
}
static FN u32 h2_mul(u32 a, u32 b)
{
    return h2_from_f(f_mul(elpis_low_half(a), elpis_low_half(b)),
                     f_mul(elpis_high_half(a), elpis_high_half(b)));
}

/* ---- integers */

static FN u32 u32_mul_hi(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
static FN u64 u64_mul_hi(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }
static FN u32 funnel_left(u32 hi, u32 lo, u32 s)
{
    return (u32)((((u64)hi << 32 | lo) << s) >> 32);
}
static FN u32 funnel_right(u32 hi, u32 lo, u32 s) { return (u32)(((u64)hi << 32 | lo) >> s); }
/* Two neighbouring bytes of a under zeros, as kernels cut 16-bit windows out: one shift. */
static FN u32 elpis_is_window(u32 b, u32 selector)
{
    u32 low = selector & 15, high = selector >> 4 & 15;
    return b == 0 && (selector & 0xcc00u) == 0x4400u && high == low + 1 && high < 4;
}
static FN u32 byte_permute(u32 a, u32 b, u32 selector)
{
    u64 both = (u64)b << 32 | a;
    if (elpis_is_window(b, selector))
        return a >> 8 * (selector & 15) & 0xffffu;
    u32 result = 0;
    for (u32 i = 0; i < 4; i++) {
        u32 choice = selector >> 4 * i & 15, byte = (u32)(both >> 8 * (choice & 7)) & 0xff;
        byte = choice & 8 ? (byte & 0x80 ? 0xff : 0) : byte;
        result |= byte << 8 * i;
    }
    return result;
}
static FN i32 dot_u8s8(u32 a, u32 b, i32 c)
{
    for (u32 i = 0; i < 4; i++)
        c += (i32)(u8)(a >> 8 * i) * (i8)(b >> 8 * i);
    return c;
}
static FN i32 dot_s8s8(u32 a, u32 b, i32 c)
{
    for (u32 i = 0; i < 4; i++)
        c += (i32)(i8)(a >> 8 * i) * (i8)(b >> 8 * i);
    return c;
}
static FN u32 count_bits(u32 a) { return (u32)__builtin_popcount(a); }
static FN u32 leading_zeros(u32 a) { return a ? (u32)__builtin_clz(a) : 32; }
static FN i64 i64_mul_add(i32 a, i32 b, i64 c) { return c + (i64)a * b; }

/* ---- memory */

static FN void load4_u32(const u32 *p, u32 out[4])
{
    __builtin_memcpy(out, __builtin_assume_aligned(p, 16), 16);
}
static FN void store4_u32(u32 *p, const u32 in[4])
{
    __builtin_memcpy(__builtin_assume_aligned(p, 16), in, 16);
}
static FN void load2_u32(const u32 *p, u32 out[2])
{
    __builtin_memcpy(out, __builtin_assume_aligned(p, 8), 8);
}
static FN void store2_u32(u32 *p, const u32 in[2])
{
    __builtin_memcpy(__builtin_assume_aligned(p, 8), in, 8);
}
static FN void load_stream4_u32(const u32 *p, u32 out[4]) { load4_u32(p, out); }
#ifdef ELPIS_CHECK
static FN void load4_fresh_u32(const u32 *p, u32 out[4])
{
    elpis_past_l1(1);
    load4_u32(p, out);
    elpis_past_l1(0);
}
static FN u32 load_fresh_u32(const u32 *p)
{
    elpis_past_l1(1);
    const u32 v = *p;
    elpis_past_l1(0);
    return v;
}
#else
static FN void load4_fresh_u32(const u32 *p, u32 out[4]) { load4_u32(p, out); }
static FN u32 load_fresh_u32(const u32 *p) { return *p; }
#endif
static FN u32 atomic_add_u32(u32 *p, u32 v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
static FN u64 atomic_add_u64(u64 *p, u64 v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
static FN void atomic_add_u64_void(u64 *p, u64 v)
{
    (void)__atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

static FN void atomic_add_u64_global(u64 *p, u64 v)
{
    (void)__atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
static FN u32 atomic_or_u32(u32 *p, u32 v) { return __atomic_fetch_or(p, v, __ATOMIC_RELAXED); }
static FN i32 atomic_max_i32(i32 *p, i32 v)
{
    i32 old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (old < v && !__atomic_compare_exchange_n(p, &old, v, 1, __ATOMIC_RELAXED,
                                                   __ATOMIC_RELAXED))
        ;
    return old;
}
static FN u32 load_acquire_u32(const u32 *p)
{
    elpis_acquired(p);
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
static FN void store_release_u32(u32 *p, u32 v)
{
    elpis_released(p);
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
static FN void fence_device(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
#ifdef ELPIS_CHECK
static FN void copy_async16(void *shared, const void *global) { elpis_copy_async(shared, global); }
static FN void copy_async_commit(void) { elpis_copy_commit(); }
static FN void copy_async_wait(u32 pending) { elpis_copy_wait(pending); }
#else
static FN void copy_async16(void *shared, const void *global)
{
    __builtin_memcpy(__builtin_assume_aligned(shared, 16), __builtin_assume_aligned(global, 16),
                     16);
}
static FN void copy_async_commit(void) {}
static FN void copy_async_wait(u32 pending) { (void)pending; }
#endif

/* ---- barriers, shuffles, sums */

static FN u32 keep_u32(u32 value) { return value; }
static FN u32 shared_place(const void *p) { return (u32)((const u8 *)p - elpis_self->shared); }
#define copy_async16_at(place, place_bytes, from, from_bytes)                                      \
    copy_async16(elpis_self->shared + (place) + (place_bytes), (const u8 *)(from) + (from_bytes))
#define load4_at(place, bytes, out)                                                                \
    load4_u32((const u32 *)(const void *)(elpis_self->shared + (place) + (bytes)), out)
#define load2_at(place, bytes, out)                                                                \
    load2_u32((const u32 *)(const void *)(elpis_self->shared + (place) + (bytes)), out)
#define store2_at(place, bytes, in)                                                                \
    store2_u32((u32 *)(void *)(elpis_self->shared + (place) + (bytes)), in)
#define load1_at(place, bytes, out)                                                                \
    ((out)[0] = *(const u32 *)(const void *)(elpis_self->shared + (place) + (bytes)))
#ifdef ELPIS_CHECK
static FN void wait_previous(void) { elpis_wait_previous(); }
#else
static FN void wait_previous(void) {}
#endif
static FN void block_sync(void) { elpis_block_sync(); }
static FN void warp_sync(void) { elpis_meet(0, "warp_sync"); }
static FN void warpgroup_sync(void) { elpis_warpgroup_sync(); }
static FN void grid_sync(u32 *counter, u32 ctas) { elpis_grid_sync(counter, ctas); }

/* Operands of every collective on one value a lane; `from` is the lane to read. */
struct elpis_value {
    u64 value, result;
    u32 from;
};
static ELPIS_COLD void elpis_exchange(void)
{
    struct elpis_warp *warp = elpis_self->warp;
    ELPIS_EACH_LANE(struct elpis_value, mine)
        mine->result = ((struct elpis_value *)warp->slot[mine->from & 31])->value;
}
static FN u64 elpis_shuffle(u64 value, u32 from, const char *name)
{
    struct elpis_value mine = {value, 0, from};
    if (elpis_meet(&mine, name))
        elpis_exchange();
    return mine.result;
}
static FN u32 shuffle_u32(u32 v, u32 lane) { return (u32)elpis_shuffle(v, lane, "shuffle"); }
static FN u64 shuffle_u64(u64 v, u32 lane) { return elpis_shuffle(v, lane, "shuffle"); }
static FN f32 shuffle_f32(f32 v, u32 lane) { return f_from_bits(shuffle_u32(f_bits(v), lane)); }
static FN u32 shuffle_xor_u32(u32 v, u32 mask)
{
    return (u32)elpis_shuffle(v, lane_id() ^ mask, "shuffle_xor");
}
static FN u64 shuffle_xor_u64(u64 v, u32 mask)
{
    return elpis_shuffle(v, lane_id() ^ mask, "shuffle_xor");
}
static FN f32 shuffle_xor_f32(f32 v, u32 mask)
{
    return f_from_bits(shuffle_xor_u32(f_bits(v), mask));
}

/* One reduction: gathers the lanes' values into v[32], folds, gives everyone the result. */
#define ELPIS_REDUCTION(name, type, fold)                                                         \
    struct elpis_##name { type value; };                                                          \
    static ELPIS_COLD void elpis_fold_##name(void)                                                \
    {                                                                                             \
        type v[32];                                                                               \
        {                                                                                         \
            ELPIS_EACH_LANE(struct elpis_##name, mine) v[lane] = mine->value;                     \
        }                                                                                         \
        fold;                                                                                     \
        {                                                                                         \
            ELPIS_EACH_LANE(struct elpis_##name, mine) mine->value = v[0];                        \
        }                                                                                         \
    }                                                                                             \
    static FN type name(type value)                                                               \
    {                                                                                             \
        struct elpis_##name mine = {value};                                                       \
        if (elpis_meet(&mine, #name))                                                             \
            elpis_fold_##name();                                                                  \
        return mine.value;                                                                        \
    }
#define ELPIS_IN_ORDER(step)                                                                      \
    for (u32 i = 1; i < 32; i++) {                                                                \
        step;                                                                                     \
    }
/* Adding halves of 16, 8, 4, 2, 1 gives lane 0 exactly what the xor butterfly gives it, and
 * float addition commutes, so every lane of the butterfly holds the same bits. */
#define ELPIS_HALVES(step)                                                                        \
    for (u32 half = 16; half > 0; half /= 2)                                                      \
        for (u32 i = 0; i < half; i++) {                                                          \
            step;                                                                                 \
        }
ELPIS_REDUCTION(warp_sum_f32, f32, ELPIS_HALVES(v[i] = f_add(v[i], v[i + half])))
ELPIS_REDUCTION(warp_max_f32, f32, ELPIS_HALVES(v[i] = f_max(v[i], v[i + half])))
ELPIS_REDUCTION(warp_max_i32, i32, ELPIS_IN_ORDER(v[0] = v[i] > v[0] ? v[i] : v[0]))
ELPIS_REDUCTION(warp_max_u32, u32, ELPIS_IN_ORDER(v[0] = v[i] > v[0] ? v[i] : v[0]))
ELPIS_REDUCTION(warp_sum_u32, u32, ELPIS_IN_ORDER(v[0] += v[i]))
ELPIS_REDUCTION(warp_sum_i32, i32, ELPIS_IN_ORDER(v[0] = (i32)((u32)v[0] + (u32)v[i])))
ELPIS_REDUCTION(warp_sum_u64, u64, ELPIS_IN_ORDER(v[0] += v[i]))
ELPIS_REDUCTION(warp_or_u32, u32, ELPIS_IN_ORDER(v[0] |= v[i]))
ELPIS_REDUCTION(elpis_ballot, u32,
                v[0] = v[0] != 0; ELPIS_IN_ORDER(v[0] |= (u32)(v[i] != 0) << i))
static FN u32 warp_ballot(u32 condition) { return elpis_ballot(condition); }

/* ---- Hadamard transforms */

typedef float elpis_f32x4 __attribute__((vector_size(16)));

/* A lane's own elements: index bits 0 and 1. */
static FN void elpis_hadamard4(f32 v[4])
{
    f32 a = f_add(v[0], v[1]), b = f_sub(v[0], v[1]), c = f_add(v[2], v[3]), d = f_sub(v[2], v[3]);
    v[0] = f_add(a, c);
    v[1] = f_add(b, d);
    v[2] = f_sub(a, c);
    v[3] = f_sub(b, d);
}
/* Index bits 2.. are bits of the lane: `stages` butterflies between lanes. */
static ELPIS_COLD void elpis_hadamard_lanes(u32 stages)
{
    elpis_f32x4 x[32];
    struct elpis_warp *warp = elpis_self->warp;
    for (u32 lane = 0; lane < 32; lane++)
        __builtin_memcpy(&x[lane], warp->slot[lane], 16);
    for (u32 step = 1; step < 1u << stages; step *= 2)
        for (u32 base = 0; base < 32; base += 2 * step)
            for (u32 i = base; i < base + step; i++) {
                elpis_f32x4 lower = x[i], upper = x[i + step];
                x[i] = lower + upper;
                x[i + step] = lower - upper;
            }
    for (u32 lane = 0; lane < 32; lane++)
        __builtin_memcpy(warp->slot[lane], &x[lane], 16);
}
static FN void warp_hadamard128(f32 v[4])
{
    elpis_hadamard4(v);
    if (elpis_meet(v, "warp_hadamard128"))
        elpis_hadamard_lanes(5);
}
static FN void warp_hadamard32(f32 v[4])
{
    elpis_hadamard4(v);
    if (elpis_meet(v, "warp_hadamard32"))
        elpis_hadamard_lanes(3);
}

/* ---- load_matrix: 8x8 matrices of halves; lanes 8i..8i+7 name the rows of matrix i */

struct elpis_matrix {
    u32 *r;
    const void *row;
};
static ELPIS_COLD void elpis_load_matrix(u32 count, u32 transposed)
{
    struct elpis_warp *warp = elpis_self->warp;
    u16 rows[4][8][8];
    for (u32 i = 0; i < 8 * count; i++)
        __builtin_memcpy(rows[i / 8][i % 8], ((struct elpis_matrix *)warp->slot[i])->row, 16);
    ELPIS_EACH_LANE(struct elpis_matrix, mine)
        for (u32 i = 0; i < count; i++) {
            u32 row = lane / 4, column = 2 * (lane % 4);
            u16 low = transposed ? rows[i][column][row] : rows[i][row][column];
            u16 high = transposed ? rows[i][column + 1][row] : rows[i][row][column + 1];
            mine->r[i] = (u32)high << 16 | low;
        }
}
/* The lane that owns a row is the one that reads it, as far as the race check goes. */
static FN void elpis_touch_row(const void *row, u32 rows)
{
#ifdef ELPIS_CHECK
    if (lane_id() < rows)
        elpis_note_read(row, 16);
#else
    (void)row, (void)rows;
#endif
}
static FN void load_matrix_x4(u32 r[4], const void *shared_row)
{
    struct elpis_matrix mine = {r, shared_row};
    elpis_touch_row(shared_row, 32);
    if (elpis_meet(&mine, "load_matrix_x4"))
        elpis_load_matrix(4, 0);
}
static FN void load_matrix_x2(u32 r[2], const void *shared_row)
{
    struct elpis_matrix mine = {r, shared_row};
    elpis_touch_row(shared_row, 16);
    if (elpis_meet(&mine, "load_matrix_x2"))
        elpis_load_matrix(2, 0);
}
static FN void load_matrix_x4_trans(u32 r[4], const void *shared_row)
{
    struct elpis_matrix mine = {r, shared_row};
    elpis_touch_row(shared_row, 32);
    if (elpis_meet(&mine, "load_matrix_x4_trans"))
        elpis_load_matrix(4, 1);
}

/* ---- matrix products on fragments
 *
 * Layouts (PTX ISA, "Matrix multiply-accumulate operation using mma instruction"), for lane l,
 * g = l / 4, q = l % 4:
 *
 *     c[e]  row g + 8 * (e / 2), column 2q + e % 2                     both shapes
 *     a[i]  row g + 8 * (i % 2), k = 16 bits: 2q + 8 * (i / 2) + {0, 1}; 8 bits: 4q + 16 * (i / 2)
 *     b[i]  column g,            k = 16 bits: 2q + 8 * i + {0, 1};       8 bits: 4q + 16 * i
 *
 * A lane's accumulators of one row of fragments, (j, e), are contiguous, and are updated in
 * place by vectors of whole fragments: the A side is the pattern (row g, row g, row g+8, row g+8)
 * repeated, the B side (column 2q, 2q+1, 2q, 2q+1) of each fragment, unpacked once a q.
 */
#if defined(__AVX512F__)
enum { ELPIS_VECTOR = 16 };
#else
enum { ELPIS_VECTOR = 8 };
#endif
enum { ELPIS_FRAGMENTS_MAX = 16, ELPIS_FRAGMENTS = ELPIS_VECTOR / 4 };
typedef float elpis_floats __attribute__((vector_size(4 * ELPIS_VECTOR)));
typedef i32 elpis_ints __attribute__((vector_size(4 * ELPIS_VECTOR)));
typedef u32 elpis_words __attribute__((vector_size(4 * ELPIS_VECTOR)));

struct elpis_product {
    void *c;
    const u32 *a, *b;
};

/* acc + a * b where a and b are converted halves: the product is exact, so fusing the two
 * operations cannot change the result. */
static FN elpis_floats elpis_fma_wide(elpis_floats a, elpis_floats b, elpis_floats acc)
{
#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
#else
    return acc + a * b;
#endif
}

/* Each sum + low x low + high x high of the signed 16-bit halves of a and b. */
static FN elpis_ints elpis_dot_wide(elpis_ints sum, elpis_words a, elpis_words b)
{
#if defined(__AVX512VNNI__)
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
#elif defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__))
    elpis_ints products;
    __asm__("vpmaddwd %2, %1, %0" : "=v"(products) : "v"(a), "v"(b));
    return sum + products;
#else
    elpis_ints low = ((elpis_ints)(a << 16) >> 16) * ((elpis_ints)(b << 16) >> 16);
    elpis_ints high = ((elpis_ints)a >> 16) * ((elpis_ints)b >> 16);
    return sum + low + high;
#endif
}

/* The same vectors where only the alignment of their elements is known, and quarters of them. */
typedef u32 elpis_u32x4 __attribute__((vector_size(16)));
typedef u32 elpis_u32x8 __attribute__((vector_size(32)));
typedef u64 elpis_u64x4 __attribute__((vector_size(32)));
typedef u32 elpis_loose __attribute__((vector_size(4 * ELPIS_VECTOR), aligned(4), may_alias));
typedef u32 elpis_loose8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef u32 elpis_loose4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef u32 elpis_loose2 __attribute__((vector_size(8), aligned(4), may_alias));

enum elpis_kind { ELPIS_F16, ELPIS_S8, ELPIS_U8 }; /* what the words of a and b hold */

/* One step of 16 sums: f16, one product of floats; 8 bits, two products of 16-bit halves. */
static FN elpis_words elpis_step(enum elpis_kind kind, elpis_words sum, elpis_words a,
                                  elpis_words b)
{
    if (kind == ELPIS_F16)
        return (elpis_words)elpis_fma_wide((elpis_floats)a, (elpis_floats)b, (elpis_floats)sum);
    return (elpis_words)elpis_dot_wide((elpis_ints)sum, a, b);
}

/* Elements of a word: two floats of two halves, or two pairs of 16-bit integers of four bytes. */
static FN void elpis_unpack_word(enum elpis_kind kind, u32 is_signed, u32 w, u32 elements[2])
{
    if (kind == ELPIS_F16) {
        elements[0] = f_bits(f_from_h(h_from_bits((u16)w)));
        elements[1] = f_bits(f_from_h(h_from_bits((u16)(w >> 16))));
    } else if (is_signed) {
        elements[0] = ((u32)((i32)(w << 24) >> 24) & 0xffffu) | (u32)((i32)(w << 16) >> 24) << 16;
        elements[1] = ((u32)((i32)(w << 8) >> 24) & 0xffffu) | (u32)((i32)w >> 24) << 16;
    } else {
        elements[0] = (w & 0xffu) | (w & 0xff00u) << 8;
        elements[1] = (w >> 16 & 0xffu) | (w >> 24) << 16;
    }
}
/* count is even. */
static FN void elpis_unpack(enum elpis_kind kind, u32 is_signed, const u32 *words, u32 count,
                            u32 *elements)
{
    for (u32 i = 0; i < count; i += 2) {
#if defined(__AVX2__) && defined(__F16C__)
        const elpis_loose2 *two = (const elpis_loose2 *)(words + i);
        elpis_u32x4 four;
        if (kind == ELPIS_F16)
            __asm__("vcvtph2ps %1, %0" : "=x"(four) : "m"(*two));
        else if (is_signed)
            __asm__("vpmovsxbw %1, %0" : "=x"(four) : "m"(*two));
        else
            __asm__("vpmovzxbw %1, %0" : "=x"(four) : "m"(*two));
        *(elpis_loose4 *)(elements + 2 * i) = four;
#else
        elpis_unpack_word(kind, is_signed, words[i], elements + 2 * i);
        elpis_unpack_word(kind, is_signed, words[i + 1], elements + 2 * i + 2);
#endif
    }
}

/* a_pattern[g][i][step][4], b_pattern[q][step][j][4]: see the head of this section. */
struct elpis_patterns {
    u32 a[8][ELPIS_FRAGMENTS_MAX][16][4] __attribute__((aligned(64)));
    u32 b[4][16][ELPIS_FRAGMENTS_MAX][4] __attribute__((aligned(64)));
};

static FN void elpis_pattern_a(enum elpis_kind kind, struct elpis_patterns *patterns, u32 lane,
                               const u32 *words, u32 count)
{
    u32 elements[8 * ELPIS_FRAGMENTS_MAX], g = lane / 4, q = lane % 4;
    elpis_unpack(kind, kind != ELPIS_U8, words, 4 * count, elements);
    for (u32 i = 0; i < count; i++)
        for (u32 k = 0; k < 2; k++) {
            elpis_u32x4 x = *(elpis_loose4 *)(elements + 8 * i + 4 * k);
            *(elpis_u32x4 *)patterns->a[g][i][8 * k + 2 * q] =
                __builtin_shufflevector(x, x, 0, 0, 2, 2);
            *(elpis_u32x4 *)patterns->a[g][i][8 * k + 2 * q + 1] =
                __builtin_shufflevector(x, x, 1, 1, 3, 3);
        }
}
/* Lanes of an even g and of g + 1 together, because their columns are neighbours in c. */
static FN void elpis_pattern_b(enum elpis_kind kind, struct elpis_patterns *patterns, u32 lane,
                               const u32 *even, const u32 *odd, u32 count)
{
    u32 left[4 * ELPIS_FRAGMENTS_MAX], right[4 * ELPIS_FRAGMENTS_MAX];
    u32 column = lane / 8, q = lane % 4;
    elpis_unpack(kind, 1, even, 2 * count, left);
    elpis_unpack(kind, 1, odd, 2 * count, right);
    for (u32 j = 0; j < count; j++) {
        elpis_u32x4 x = *(elpis_loose4 *)(left + 4 * j), y = *(elpis_loose4 *)(right + 4 * j);
        *(elpis_u32x4 *)patterns->b[column][2 * q][j] = __builtin_shufflevector(x, y, 0, 4, 0, 4);
        *(elpis_u32x4 *)patterns->b[column][2 * q + 1][j] =
            __builtin_shufflevector(x, y, 1, 5, 1, 5);
        *(elpis_u32x4 *)patterns->b[column][8 + 2 * q][j] =
            __builtin_shufflevector(x, y, 2, 6, 2, 6);
        *(elpis_u32x4 *)patterns->b[column][9 + 2 * q][j] =
            __builtin_shufflevector(x, y, 3, 7, 3, 7);
    }
}

static FN elpis_words elpis_repeat4(const u32 *four)
{
    elpis_words all;
    const elpis_u32x4 *from = (const elpis_u32x4 *)four;
#if defined(__AVX512F__)
    __asm__("vbroadcasti32x4 %1, %0" : "=v"(all) : "m"(*from));
#elif defined(__AVX2__)
    __asm__("vbroadcasti128 %1, %0" : "=x"(all) : "m"(*from));
#else
    all = __builtin_shufflevector(*from, *from, 0, 1, 2, 3, 0, 1, 2, 3);
#endif
    return all;
}

/* One lane: `rows` (a constant, at most 4) rows of fragments from i, one vector of them from j. */
static inline __attribute__((always_inline)) void
elpis_lane_block(enum elpis_kind kind, const struct elpis_patterns *patterns, u32 lane, u32 *c,
                 u32 nb, u32 i, u32 j, const u32 rows)
{
    elpis_words sum[4];
    for (u32 r = 0; r < rows; r++)
        sum[r] = *(elpis_loose *)(c + ((i + r) * nb + j) * 4);
    for (u32 step = 0; step < 16; step++) {
        elpis_words b = *(const elpis_words *)patterns->b[lane % 4][step][j];
        for (u32 r = 0; r < rows; r++)
            sum[r] = elpis_step(kind, sum[r], elpis_repeat4(patterns->a[lane / 4][i + r][step]), b);
    }
    for (u32 r = 0; r < rows; r++)
        *(elpis_loose *)(c + ((i + r) * nb + j) * 4) = sum[r];
}
/* One fragment, for those that do not fill a vector. */
static FN elpis_u32x4 elpis_step4(enum elpis_kind kind, elpis_u32x4 sum, elpis_u32x4 a,
                                  elpis_u32x4 b)
{
    if (kind == ELPIS_F16) {
#if defined(__FMA__)
        __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
        return sum;
#else
        return (elpis_u32x4)((elpis_f32x4)sum + (elpis_f32x4)a * (elpis_f32x4)b);
#endif
    }
#if defined(__SSE2__)
    typedef short halves __attribute__((vector_size(16)));
    return sum + (elpis_u32x4)__builtin_ia32_pmaddwd128((halves)a, (halves)b);
#else
    typedef i32 ints __attribute__((vector_size(16)));
    ints low = ((ints)(a << 16) >> 16) * ((ints)(b << 16) >> 16);
    return sum + (elpis_u32x4)(low + ((ints)a >> 16) * ((ints)b >> 16));
#endif
}
static FN void elpis_lane_single(enum elpis_kind kind, const struct elpis_patterns *patterns,
                                 u32 lane, u32 *c, u32 i, u32 j)
{
    elpis_u32x4 sum = *(elpis_loose4 *)c;
    for (u32 step = 0; step < 16; step++)
        sum = elpis_step4(kind, sum, *(const elpis_u32x4 *)patterns->a[lane / 4][i][step],
                          *(const elpis_u32x4 *)patterns->b[lane % 4][step][j]);
    *(elpis_loose4 *)c = sum;
}
static FN void elpis_lane_product(enum elpis_kind kind, const struct elpis_patterns *patterns,
                                  u32 lane, u32 *c, u32 ma, u32 nb)
{
    for (u32 j = 0; j + ELPIS_FRAGMENTS <= nb; j += ELPIS_FRAGMENTS) {
        u32 i = 0;
        for (; i + 4 <= ma; i += 4)
            elpis_lane_block(kind, patterns, lane, c, nb, i, j, 4);
        for (; i < ma; i++)
            elpis_lane_block(kind, patterns, lane, c, nb, i, j, 1);
    }
    for (u32 j = nb / ELPIS_FRAGMENTS * ELPIS_FRAGMENTS; j < nb; j++)
        for (u32 i = 0; i < ma; i++)
            elpis_lane_single(kind, patterns, lane, c + (i * nb + j) * 4, i, j);
}

/* c[(i * nb + j) * 4 ..] += a[4 * i ..] x b[2 * j ..], `first` fragments into the operands. */
static FN void elpis_product_pairs(enum elpis_kind kind, u32 ma, u32 nb, u32 first)
{
    struct elpis_patterns *patterns = (struct elpis_patterns *)(void *)elpis_self->scratch;
    struct elpis_warp *warp = elpis_self->warp;
    for (u32 lane = 0; lane < 32; lane++) {
        const struct elpis_product *mine = warp->slot[lane];
        elpis_pattern_a(kind, patterns, lane, mine->a + 4 * first, ma);
        if (lane / 4 % 2 == 0) {
            const struct elpis_product *next = warp->slot[lane + 4];
            elpis_pattern_b(kind, patterns, lane, mine->b + 2 * first, next->b + 2 * first, nb);
        }
    }
    for (u32 lane = 0; lane < 32; lane++) {
        const struct elpis_product *mine = warp->slot[lane];
        elpis_lane_product(kind, patterns, lane, (u32 *)mine->c + 4 * first, ma, nb);
    }
}

#define ELPIS_PRODUCT(name, type, kind)                                                           \
    static ELPIS_COLD void elpis_pairs_##name(u32 ma, u32 nb)                                     \
    {                                                                                             \
        elpis_product_pairs(kind, ma, nb, 0);                                                     \
    }                                                                                             \
    static ELPIS_COLD void elpis_each_##name(u32 count)                                           \
    {                                                                                             \
        for (u32 i = 0; i < count; i++)                                                           \
            elpis_product_pairs(kind, 1, 1, i);                                                   \
    }                                                                                             \
    static FN void name##_ab(u32 ma, u32 nb, type *c, const u32 *a, const u32 *b)                 \
    {                                                                                             \
        struct elpis_product mine = {c, a, b};                                                    \
        if (elpis_meet(&mine, #name "_ab"))                                                       \
            elpis_pairs_##name(ma, nb);                                                           \
    }                                                                                             \
    static FN void name##_n(u32 count, type *c, const u32 *a, const u32 *b)                       \
    {                                                                                             \
        struct elpis_product mine = {c, a, b};                                                    \
        if (elpis_meet(&mine, #name "_n"))                                                        \
            elpis_each_##name(count);                                                             \
    }                                                                                             \
    static FN void name(type *c, const u32 *a, const u32 *b) { name##_n(1, c, a, b); }
ELPIS_PRODUCT(mma_s8s8, i32, ELPIS_S8)
ELPIS_PRODUCT(mma_u8s8, i32, ELPIS_U8)
ELPIS_PRODUCT(mma_f16, f32, ELPIS_F16)

enum { ELPIS_SLICE_MAX = 16 }; /* fragments */
/* Each step of 16 products is added as mma_f16 does it and rounded to fp16 once. */
static FN void mma_f16_slice(u32 count, f32 *sums, const u32 a[8], const u32 *b)
{
    f32 slice[4 * ELPIS_SLICE_MAX] = {{0}};
    for (u32 step = 0; step < 2; step++) {
        mma_f16_ab(1, count, slice, a + 4 * step, b + 2 * step * count);
        for (u32 i = 0; i < 4 * count; i++)
            slice[i] = f_from_h(h_from_f(slice[i]));
    }
    for (u32 i = 0; i < 4 * count; i++)
        sums[i] = f_add(sums[i], slice[i]);
}

/* ---- the decode linear: weights as integers, activations as two planes of bytes
 *
 * The fragments of the prelude's README seen as m16n8: A rows are the 16 columns of a tile, the
 * steps are pairs of k. Sums of a lane are contiguous over tiles, so vectors run over ELPIS_CHUNK
 * tiles:
 *
 *     weights[g][step][tile][4]     (column g, g, g+8, g+8), pairs of 16-bit integers
 *     planes[plane][q][step][4]     (row 2q, 2q+1, 2q, 2q+1)
 *
 * Lanes whose rows are all idle (2q >= rows) are skipped.
 */
enum { ELPIS_CHUNK = ELPIS_FRAGMENTS };
struct elpis_linear {
    i32 *sums[3];
    const u32 *w, *act;
};
typedef u32 elpis_weights[8][8][ELPIS_CHUNK][4] __attribute__((aligned(64)));

static FN void elpis_store_weights(elpis_weights weights, u32 lane, u32 tile, elpis_u32x8 values)
{
    u32 g = lane / 4, q = lane % 4;
    elpis_u64x4 wide = (elpis_u64x4)values;
    elpis_u32x8 pairs = (elpis_u32x8)(wide | wide >> 16);
    *(elpis_u32x4 *)weights[g][2 * q][tile] = __builtin_shufflevector(pairs, pairs, 0, 0, 4, 4);
    *(elpis_u32x4 *)weights[g][2 * q + 1][tile] = __builtin_shufflevector(pairs, pairs, 2, 2, 6, 6);
}

/* Eight sums of the four bytes of a word. */
static FN elpis_u32x8 elpis_byte_sums(elpis_u32x8 w)
{
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    elpis_u32x8 sum = {0};
    const elpis_u32x8 ones = (elpis_u32x8){0} + 0x01010101u;
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(ones));
    return sum;
#else
    elpis_u32x8 halves = (w & 0x00ff00ffu) + (w >> 8 & 0x00ff00ffu);
    return (halves + (halves >> 16)) & 0xffffu;
#endif
}

/* Calls of two k-tiles have two structs a slot. */
static FN void elpis_unpack_planes(u32 planes[2][4][8][4], u32 rows, u32 ktile)
{
    struct elpis_warp *warp = elpis_self->warp;
    for (u32 lane = 0; lane < 4 * ((rows + 1) / 2 * 2); lane++) {
        const u32 *act = ((struct elpis_linear *)warp->slot[lane])[ktile].act;
        u32 pairs[4], g = lane / 4, q = lane % 4;
        elpis_unpack(ELPIS_S8, 1, act, 2, pairs);
        for (u32 i = 0; i < 4; i++) {
            u32 *to = planes[i / 2][g / 2][2 * q + i % 2];
            to[g % 2] = to[g % 2 + 2] = pairs[i];
        }
    }
}

/* sums of one lane += weights x plane: all tiles of a chunk at once, or `count` one by one. */
static FN void elpis_linear_chunk(i32 *sums, elpis_weights weights, u32 planes[4][8][4], u32 lane)
{
    elpis_words even = *(elpis_loose *)(u32 *)sums, odd = {0};
    for (u32 step = 0; step < 8; step += 2) {
        even = elpis_step(ELPIS_S8, even, *(elpis_words *)weights[lane / 4][step],
                          elpis_repeat4(planes[lane % 4][step]));
        odd = elpis_step(ELPIS_S8, odd, *(elpis_words *)weights[lane / 4][step + 1],
                         elpis_repeat4(planes[lane % 4][step + 1]));
    }
    *(elpis_loose *)(u32 *)sums = even + odd;
}
static FN void elpis_linear_lane(i32 *sums, elpis_weights weights, u32 planes[4][8][4], u32 lane,
                                 u32 count)
{
    if (count == ELPIS_CHUNK) {
        elpis_linear_chunk(sums, weights, planes, lane);
        return;
    }
    for (u32 t = 0; t < count; t++) {
        elpis_u32x4 sum = *(elpis_loose4 *)(u32 *)(sums + 4 * t);
        for (u32 step = 0; step < 8; step++)
            sum = elpis_step4(ELPIS_S8, sum, *(elpis_u32x4 *)weights[lane / 4][step][t],
                              *(elpis_u32x4 *)planes[lane % 4][step]);
        *(elpis_loose4 *)(u32 *)(sums + 4 * t) = sum;
    }
}

static ELPIS_COLD void elpis_linear_mul1(u32 tiles, u32 rows)
{
    struct elpis_warp *warp = elpis_self->warp;
    u32 planes[2][4][8][4] __attribute__((aligned(64)));
    elpis_weights weights;
    elpis_unpack_planes(planes, rows, 0);
    for (u32 from = 0; from < tiles; from += ELPIS_CHUNK) {
        u32 count = tiles - from < ELPIS_CHUNK ? tiles - from : ELPIS_CHUNK;
        for (u32 lane = 0; lane < 32; lane++) {
            const u32 *w = ((struct elpis_linear *)warp->slot[lane])->w + 8 * from;
            for (u32 t = 0; t < count; t++)
                elpis_store_weights(weights, lane, t,
                                    elpis_byte_sums(*(const elpis_loose8 *)(w + 8 * t)));
        }
        for (u32 lane = 0; lane < 32; lane++) {
            struct elpis_linear *mine = warp->slot[lane];
            if (2 * (lane % 4) >= rows)
                continue;
            elpis_linear_lane(mine->sums[0] + 4 * from, weights, planes[0], lane, count);
            elpis_linear_lane(mine->sums[1] + 4 * from, weights, planes[1], lane, count);
        }
    }
}
static FN void mma_u8s8_mul1(u32 tiles, i32 *high, i32 *low, const u32 *w, const u32 act[2],
                             u32 rows)
{
    struct elpis_linear mine = {{high, low, 0}, w, act};
    if (elpis_meet(&mine, "mma_u8s8_mul1"))
        elpis_linear_mul1(tiles, rows);
}

static FN void mma_u8s8_mul1_first(u32 tiles, i32 *high, i32 *low, const u32 *w, const u32 act[2],
                                   u32 rows)
{
    for (u32 i = 0; i < 4 * tiles; i++)
        high[i] = low[i] = 0;
    mma_u8s8_mul1(tiles, high, low, w, act, rows);
}

static FN void warpgroup_stored(void) {}
static FN u64 warpgroup_matrix(u32 place) { return place; }
static FN void warpgroup_mma_mul1(i32 *high, i32 *low, const u32 *w, u64 matrix, u32 ktile, u32 add)
{
    const u8 *at = elpis_self->shared + matrix + 1024 * ktile + 4 * lane_id();
    u32 act[2] = {0, 0};
    for (u32 plane = 0; plane < 2; plane++)
        for (u32 i = 0; i < 4; i++) { /* [half of k][plane][parity] of 128 bytes */
            const u32 word = *(const u32 *)(at + 128 * (i / 2 * 4 + plane * 2 + i % 2));
            const u32 byte = word == (word & 255) * 0x01010101u ? word & 255 : ~word & 255;
            act[plane] |= byte << 8 * i; /* not what it is, where its four bytes differ */
        }
    for (u32 i = 0; i < 4 && !add; i++)
        high[i] = low[i] = 0;
    mma_u8s8_mul1(1, high, low, w, act, 8);
}
static FN void warpgroup_mma_wait(u32 count, i32 *high, i32 *low)
{
    (void)count, (void)high, (void)low;
}

static FN void mma_u8s8_mul1_plane(u32 tiles, i32 *sums, const u32 *w, u32 act)
{
    const u32 planes[2] = {act, 0};
    i32 none[4 * 8] = {0};
    mma_u8s8_mul1(tiles, sums, none, w, planes, 8);
}

static FN void mma_u8s8_mul1_plane_first(u32 tiles, i32 *sums, const u32 *w, u32 act)
{
    for (u32 i = 0; i < 4 * tiles; i++)
        sums[i] = 0;
    mma_u8s8_mul1_plane(tiles, sums, w, act);
}

/* The low and the high byte of v as signed 16-bit integers in the low half of a word. */
static FN elpis_u32x8 elpis_signed_byte(elpis_u32x8 v, u32 byte)
{
    return ((v >> 8 * byte & 0xffu) ^ 0x80u) - 0x80u & 0xffffu;
}
/* Weights of two bytes: those of v, both signed, or those of a byte sum, unsigned. */
static FN void elpis_linear_split(u32 tiles, u32 rows, u32 ktile, u32 is_signed)
{
    struct elpis_warp *warp = elpis_self->warp;
    u32 planes[2][4][8][4] __attribute__((aligned(64)));
    elpis_weights vh, vl;
    elpis_unpack_planes(planes, rows, ktile);
    for (u32 from = 0; from < tiles; from += ELPIS_CHUNK) {
        u32 count = tiles - from < ELPIS_CHUNK ? tiles - from : ELPIS_CHUNK;
        for (u32 lane = 0; lane < 32; lane++) {
            const u32 *v = ((struct elpis_linear *)warp->slot[lane])[ktile].w + 8 * from;
            for (u32 t = 0; t < count; t++) {
                elpis_u32x8 words = *(const elpis_loose8 *)(v + 8 * t);
                if (is_signed) {
                    elpis_store_weights(vl, lane, t, elpis_signed_byte(words, 0));
                    elpis_store_weights(vh, lane, t, elpis_signed_byte(words, 1));
                } else {
                    elpis_u32x8 sums = elpis_byte_sums(words);
                    elpis_store_weights(vl, lane, t, sums & 0xffu);
                    elpis_store_weights(vh, lane, t, sums >> 8);
                }
            }
        }
        for (u32 lane = 0; lane < 32; lane++) {
            struct elpis_linear *mine = warp->slot[lane];
            if (2 * (lane % 4) >= rows)
                continue;
            elpis_linear_lane(mine->sums[0] + 4 * from, vh, planes[0], lane, count);
            elpis_linear_lane(mine->sums[1] + 4 * from, vh, planes[1], lane, count);
            elpis_linear_lane(mine->sums[1] + 4 * from, vl, planes[0], lane, count);
            elpis_linear_lane(mine->sums[2] + 4 * from, vl, planes[1], lane, count);
        }
    }
}
static ELPIS_COLD void elpis_linear_pairs(u32 tiles, u32 rows)
{
    elpis_linear_split(tiles, rows, 0, 1);
}
static FN void mma_s8_pairs(u32 tiles, i32 *c2, i32 *c1, i32 *c0, const u32 *v, const u32 act[2],
                            u32 rows)
{
    struct elpis_linear mine = {{c2, c1, c0}, v, act};
    if (elpis_meet(&mine, "mma_s8_pairs"))
        elpis_linear_pairs(tiles, rows);
}

static ELPIS_COLD void elpis_linear_mul1_pairs(u32 tiles, u32 rows)
{
    elpis_linear_split(tiles, rows, 0, 0);
    elpis_linear_split(tiles, rows, 1, 0);
}
static FN void mma_u8s8_mul1_pairs(u32 tiles, i32 *top, i32 *high, i32 *low, const u32 *w,
                                   const u32 act[2], const u32 *w_next, const u32 act_next[2],
                                   u32 rows)
{
    struct elpis_linear mine[2] = {{{top, high, low}, w, act},
                                   {{top, high, low}, w_next, act_next}};
    if (elpis_meet(mine, "mma_u8s8_mul1_pairs"))
        elpis_linear_mul1_pairs(tiles, rows);
}

static FN void mma_u8s8_mul1_pairs_first(u32 tiles, i32 *top, i32 *high, i32 *low, const u32 *w,
                                         const u32 act[2], const u32 *w_next,
                                         const u32 act_next[2], u32 rows)
{
    for (u32 i = 0; i < 4 * tiles; i++)
        top[i] = high[i] = low[i] = 0;
    mma_u8s8_mul1_pairs(tiles, top, high, low, w, act, w_next, act_next, rows);
}
