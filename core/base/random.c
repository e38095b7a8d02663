/* random.c - splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA
 * 2014): a counter in steps of RANDOM_STEP, and a function that mixes it. So the word at any place
 * of a seed's sequence is random_mix(seed + (place + 1) * RANDOM_STEP).
 */
#include "base/base.h"

u64 random_mix(u64 z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

u64 random_next(u64 *state)
{
    return random_mix(*state += RANDOM_STEP);
}
