/* whole.h - what tests of the whole engine share: how much of them runs, evaluations. */
#ifndef ELPIS_TEST_WHOLE_H
#define ELPIS_TEST_WHOLE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/engine.h"

#define WHOLE __attribute__((unused)) static

/* With `make test-full`: more of the cases. */
WHOLE bool full_run(void)
{
    return getenv("ELPIS_TEST_FULL") != NULL;
}

/* The result of an evaluation that has to succeed; for release. */
WHOLE struct engine_eval_result evaluate(struct engine *engine, const struct engine_eval *eval)
{
    struct engine_eval_result result;
    struct error error = {0};
    if (engine_evaluate(engine, eval, &result, &error))
        fail_msg("%s", error.text);
    return result;
}

WHOLE void release(struct engine_eval_result *result)
{
    memory_free(result->logits);
    memory_free(result->hidden);
    memory_free(result->committed);
    memory_free(result->committed_logits);
}

#endif
