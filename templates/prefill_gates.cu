//@ -- see schedules/prefill_gates.lua
KERNEL
{
    ${jobs.open}
        f32 strength = ${f32(0)}, decay = ${f32(0)};
        if (row < rows) {
            const f32 *pair = ab + (u64)row * ${2 * v_heads} + head;
            strength = f_sigmoid(pair[${v_heads}]);
            decay = f_mul(f_neg(f_exp(a_log[head])), f_softplus(f_add(pair[0], dt_bias[head])));
        }
        beta[(u64)row * ${v_heads} + head] = strength;
        g[(u64)row * ${v_heads} + head] = decay;
    ${jobs.close}
}
