/* host_switch.c - changing stacks.
 *
 * A context that does not run is its stack pointer; the registers that a call
 * must preserve lie on its stack. Floating-point control registers are not
 * saved: every fiber of a worker runs under the same ones.
 *
 * x86-64 (System V ABI), lowest address first:  r15 r14 r13 r12 rbx rbp, return address
 * AArch64 (AAPCS64):                            d8-d15, x19-x28, x29, x30
 *
 * Elsewhere ucontext does it, some 70 times slower (a system call each time).
 */
#include "device/host.h"

#if defined(__x86_64__)

__asm__(".text\n"
        ".globl host_switch\n"
        ".type host_switch, @function\n"
        "host_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size host_switch, .-host_switch\n");

void *host_stack_prepare(u8 *top, void (*start)(void))
{
    /* At a function's first instruction the stack is 8 below a multiple of 16. */
    u64 *stack = (u64 *)((uintptr_t)top & ~(uintptr_t)15) - 1;
    *stack = 0;
    *--stack = (u64)(uintptr_t)start;
    for (int i = 0; i < 6; i++)
        *--stack = 0;
    return stack;
}

#elif defined(__aarch64__)

__asm__(".text\n"
        ".globl host_switch\n"
        ".type host_switch, %function\n"
        "host_switch:\n"
        "    sub sp, sp, #160\n"
        "    stp d8, d9, [sp, #0]\n"
        "    stp d10, d11, [sp, #16]\n"
        "    stp d12, d13, [sp, #32]\n"
        "    stp d14, d15, [sp, #48]\n"
        "    stp x19, x20, [sp, #64]\n"
        "    stp x21, x22, [sp, #80]\n"
        "    stp x23, x24, [sp, #96]\n"
        "    stp x25, x26, [sp, #112]\n"
        "    stp x27, x28, [sp, #128]\n"
        "    stp x29, x30, [sp, #144]\n"
        "    mov x9, sp\n"
        "    str x9, [x0]\n"
        "    mov sp, x1\n"
        "    ldp d8, d9, [sp, #0]\n"
        "    ldp d10, d11, [sp, #16]\n"
        "    ldp d12, d13, [sp, #32]\n"
        "    ldp d14, d15, [sp, #48]\n"
        "    ldp x19, x20, [sp, #64]\n"
        "    ldp x21, x22, [sp, #80]\n"
        "    ldp x23, x24, [sp, #96]\n"
        "    ldp x25, x26, [sp, #112]\n"
        "    ldp x27, x28, [sp, #128]\n"
        "    ldp x29, x30, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size host_switch, .-host_switch\n");

void *host_stack_prepare(u8 *top, void (*start)(void))
{
    enum { SAVED = 20, LINK = 19 };
    u64 *stack = (u64 *)((uintptr_t)top & ~(uintptr_t)15) - SAVED;
    for (int i = 0; i < SAVED; i++)
        stack[i] = 0;
    stack[LINK] = (u64)(uintptr_t)start;
    return stack;
}

#else

#include <ucontext.h>

/* The stack pointer of this variant is a ucontext_t: that of a fiber lies at the top of its
 * stack, that of a scheduler on the scheduler's own stack. */
void host_switch(void **from, void *to)
{
    ucontext_t here;
    *from = &here;
    swapcontext(&here, to);
}

void *host_stack_prepare(u8 *top, void (*start)(void))
{
    ucontext_t *context = (ucontext_t *)((uintptr_t)(top - sizeof(ucontext_t)) & ~(uintptr_t)63);
    getcontext(context);
    context->uc_stack.ss_sp = (u8 *)context - HOST_STACK / 2;
    context->uc_stack.ss_size = HOST_STACK / 2;
    makecontext(context, start, 0);
    return context;
}

#endif
