/* host.h - what the files of the host device share.
 *
 *     host.c          the backend: memory, copies, streams, events, graphs, launches
 *     host_fiber.c    a CTA on one worker: fibers, warp rendezvous, barriers
 *     host_switch.c   changing stacks
 *     host_pool.c     the worker threads
 *     host_compile.c  system compiler, shared objects
 *     host_check.c    sentinels and the race check
 *
 * Who owns what while a kernel runs:
 *
 *     host_launch (the caller's stack)         one a launch: counters, first fault
 *       host_worker (pool, one a thread)       stacks, fibers and CTAs, reused
 *         host_cta                             shared memory, barrier state
 *           host_warp                          slots of the lanes, rendezvous state
 *             host_fiber                       a thread of the CTA: stack, position
 *
 * A fiber never leaves its worker, so nothing here but the counters of host_launch is shared
 * between threads.
 */
#ifndef ELPIS_HOST_H
#define ELPIS_HOST_H

#include <pthread.h>
#include <stdatomic.h>

#include "device/device_private.h"

enum {
    WARP = 32,
    HOST_STACK = 64 * 1024,   /* bytes of a fiber's stack */
    HOST_STACK_COLOUR = 576,  /* added to the distance of stacks, so that the hot ends of a
                                   warp's stacks spread over the cache's sets */
    HOST_SCRATCH = 64 * 1024, /* a worker's room for collectives (prelude/host.h) */
    HOST_GUARD = 256,         /* bytes of sentinel before and after a buffer */
    HOST_SHARED = 227 * 1024, /* dynamic shared memory a block may ask for, as sm_90 */
};

/* ---- what kernels see: prelude/host.h declares the same two structs */

struct elpis_warp {
    void *slot[WARP];
};
struct elpis_thread {
    u32 thread, lane, warp_index, cta;
    u8 *shared;
    struct elpis_warp *warp;
    u8 *scratch;
};
extern __thread struct elpis_thread *elpis_self __attribute__((tls_model("initial-exec")));

typedef void host_entry(const u64 *slots);

struct host_fiber {
    struct elpis_thread self; /* first: elpis_self points here */
    void *stack_pointer;      /* while it does not run */
    struct host_fiber *next;  /* the lane that runs after this one gives way */
    struct host_cta *cta;
    u8 *stack;                /* lowest address; holds the overflow mark */
    struct host_copy *copies; /* check mode: asynchronous copies that have not landed */
    u32 copy_count, copy_group;
    /* check mode: wait_previous() is behind it; else the first thing it did that has to be */
    bool waited, past_l1;                     /* past_l1: of what it reads now (load_fresh_u32) */
    const char *early, *early_of, *early_why; /* a verb, a buffer's name; NULL: nothing */
    size_t early_at;
};

enum { WARPS_OF_GROUP = 4 }; /* a warpgroup: four warps, the first a multiple of four */
enum host_warp_state { WARP_READY, WARP_AT_GROUP, WARP_AT_BLOCK, WARP_AT_GRID, WARP_DONE };

struct host_warp {
    struct elpis_warp slots; /* first: elpis_thread.warp points here */
    const char *operation;   /* of the current rendezvous */
    u32 arrived, finished;   /* lanes */
    u32 epoch;               /* rendezvous completed */
    u32 group_epoch;         /* barriers of its warpgroup completed */
    enum host_warp_state state;
    struct host_fiber *resume; /* the lane that runs when the warp is scheduled */
    struct host_fiber *lanes;  /* WARP of them */
};

struct host_cta {
    struct host_launch *launch;
    struct host_worker *worker;
    u32 index, warps, live, waiting; /* warps: all, not returned, at the barrier */
    u32 epoch;                       /* barriers completed */
    u32 releases;                    /* check mode: release operations done */
    u32 grid_awaited;
    struct host_warp *warp;     /* [warps] */
    struct host_fiber *fiber;   /* [32 * warps] */
    u8 *shared_memory, *shared; /* allocation, and where the kernel's memory starts */
    size_t shared_capacity;
    struct host_cell *shadow; /* check mode: of the shared memory */
};

struct host_worker {
    struct host_cta *ctas; /* resident ones */
    u32 cta_capacity, warp_capacity;
    struct host_warp *warps;
    struct host_fiber *fibers;
    u8 *stacks; /* mapping: guard page, stacks, guard page */
    size_t stacks_size;
    u8 *scratch;
    void *stack_pointer; /* the scheduler's, while a fiber runs */
    u64 random;
    const void *sanitizer_bottom; /* the scheduler's stack, for the address sanitizer */
    size_t sanitizer_size;
};

enum { HOST_STREAMS = 64 }; /* at a time */

/* Of each stream the last launch that is known to be over, to whoever keeps this. Launches are
 * numbered from 1 on over all streams. */
struct host_known {
    u32 over[HOST_STREAMS];
};

struct device_stream {
    u32 index;
    u32 last, pass;          /* its last launch; the last of all before the pass that runs */
    struct host_known known; /* by events that it waited for and what the host did */
};

struct host_launch {
    struct host_device *device;
    struct device_stream *stream;
    struct device_function *function;
    const u64 *slots;
    u32 workers; /* that take part */
    u32 number;  /* counts launches; marks shadow cells */
    _Atomic u32 next_cta, failed, grid_arrived, grid_epoch, ctas_done;
    pthread_mutex_t lock;
    char fault[440];
};

struct device_function {
    struct device_function *next;
    struct device_module *module;
    host_entry *entry;
    struct device_geometry geometry;
    char name[96];
};

struct host_pool;
struct host_check;

struct host_device {
    struct device base;
    u32 threads, order;
    bool check;
    char *compiler_path;
    struct host_pool *pool;
    struct host_check *checks;  /* NULL unless options.host_check */
    u32 launches;               /* made */
    struct device_stream first; /* what a NULL stream means */
    u64 streams;                /* indices in use, a bit each */
    struct host_known known;    /* to the host, which waited */
    struct device_graph *recording;
    struct host_buffer *buffers; /* sorted by address */
    size_t buffer_count, buffer_capacity;
};

/* A device allocation. */
struct host_buffer {
    u8 *data; /* what the caller got */
    size_t size;
    void *memory; /* what calloc gave */
    char label[48];
    struct host_cell *shadow; /* check mode: one cell for 4 bytes; NULL until touched */
};

/* ---- host_switch.c */

/* Saves the running context's stack pointer in *from and goes on at `to`. */
void host_switch(void **from, void *to);
/* Prepares a stack so that switching to the returned pointer calls `start`, which must not
 * return. top: its high end. */
void *host_stack_prepare(u8 *top, void (*start)(void));

/* ---- host_fiber.c */

/* Runs this worker's share of the CTAs; returns when none is left or the launch failed. */
void host_run_ctas(struct host_worker *worker, struct host_launch *launch, u32 worker_index);
/* Room for `ctas` CTAs of `block` threads with `shared` bytes each. */
void host_worker_reserve(struct host_worker *worker, u32 ctas, u32 block, u32 shared);
void host_worker_release(struct host_worker *worker);
/* From a fiber: notes the first fault of the launch and abandons its CTA. */
_Noreturn void host_fault(const char *format, ...) PRINTF_LIKE(1, 2);
struct host_fiber *host_self(void); /* NULL outside kernels */

/* ---- host_pool.c */

int host_pool_create(struct host_pool **pool, u32 threads, u64 seed, struct error *error);
void host_pool_destroy(struct host_pool *pool);
void host_pool_run(struct host_pool *pool, struct host_launch *launch);

/* ---- host_compile.c */

/* The system compiler's path (caller frees) and one line on its version; NULL: none found. */
char *host_compiler_find(char version[96]);
void host_cpu_digest(char text[17]);
int host_compile(struct device *device, struct slice source, const char *name, struct buffer *image,
                 struct error *error);
int host_module_load(struct device *device, const void *image, size_t size, const char *name,
                     struct device_module **module, struct error *error);
void host_module_unload(struct device *device, struct device_module *module);
int host_function_get(struct device *device, struct device_module *module, const char *name,
                      const struct device_geometry *geometry, struct device_function **function,
                      struct error *error);

/* ---- host_check.c: all but create accept a device without checks and do nothing */

void host_check_create(struct host_device *device);
void host_check_destroy(struct host_device *device);
void host_check_buffer_new(struct host_device *device, struct host_buffer *buffer);
void host_check_buffer_gone(struct host_device *device, struct host_buffer *buffer);
void host_check_cta_begin(struct host_cta *cta); /* shared memory: poison, sentinels, no history */
void host_check_cta_end(struct host_cta *cta);   /* shared memory's sentinels */
void host_check_launch_begin(struct host_launch *launch);
/* Sentinels of all buffers; -1 when something was found in this launch. */
int host_check_launch_end(struct host_launch *launch, struct error *error);
void host_check_note(struct host_device *device, const char *text); /* a fault for the list */
struct host_buffer *host_buffer_at(struct host_device *device, uintptr_t address);

#endif
