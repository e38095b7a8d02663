/* digest.c - BLAKE2b-256 by libsodium (RFC 7693), whole and in pieces.
 */
#include <sodium.h>
#include <stdlib.h>

#include "base/base.h"

enum { STATE_ALIGN = 64 }; /* what libsodium asks for */

struct digest_state {
    crypto_generichash_blake2b_state state;
};

struct digest digest_of(const void *data, size_t size)
{
    struct digest digest;
    crypto_generichash_blake2b(digest.bytes, sizeof digest.bytes, data, size, NULL, 0);
    return digest;
}

struct digest_state *digest_begin(void)
{
    size_t size = (sizeof(struct digest_state) + STATE_ALIGN - 1) / STATE_ALIGN * STATE_ALIGN;
    struct digest_state *state = aligned_alloc(STATE_ALIGN, size);
    if (!state) {
        log_error("out of memory on the host: a digest state was refused");
        exit(ERROR_MEMORY);
    }
    crypto_generichash_blake2b_init(&state->state, NULL, 0, sizeof(struct digest));
    return state;
}

void digest_add(struct digest_state *state, const void *data, size_t size)
{
    crypto_generichash_blake2b_update(&state->state, data, size);
}

struct digest digest_end(struct digest_state *state)
{
    struct digest digest;
    crypto_generichash_blake2b_final(&state->state, digest.bytes, sizeof digest.bytes);
    free(state);
    return digest;
}

void digest_text(struct digest digest, char text[65])
{
    sodium_bin2hex(text, 65, digest.bytes, sizeof digest.bytes);
}
