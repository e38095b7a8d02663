/* test_check.c - `elpis check` as a whole: its report, and the exit status and sentence
 * of each kind of failure. The command runs in a child process whose output is read.
 */
#include <sys/wait.h>

#include "cli/cli.h"
#include "model/make_draft.h"
#include "model/support.h"

/* What one run printed, both streams, and how it ended. */
struct run {
    int status;
    struct buffer text;
};

static void child(int output, char **argv)
{
    int argc = 0;
    while (argv[argc])
        argc++;
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    int status = command_check.run(&command_check, argc, argv);
    fflush(stdout);
    _exit(status);
}

/* arguments end with NULL; the cache is in the test's folder. */
static struct run run_check(const char *first, ...)
{
    struct run run = {0};
    char *argv[16] = {"check", "--cache", (char *)in_folder("cache"), (char *)first};
    int pipes[2], status;
    va_list list;
    va_start(list, first);
    for (int i = 4; first && (argv[i] = va_arg(list, char *)) != NULL; i++)
        ;
    va_end(list);
    assert_int_equal(pipe(pipes), 0);
    fflush(stdout);
    pid_t process = fork();
    if (process == 0)
        child(pipes[1], argv);
    close(pipes[1]);
    char piece[4096];
    for (ssize_t got; (got = read(pipes[0], piece, sizeof piece)) > 0;)
        buffer_add(&run.text, piece, (size_t)got);
    close(pipes[0]);
    assert_int_equal(waitpid(process, &status, 0), process);
    assert_true(WIFEXITED(status));
    run.status = WEXITSTATUS(status);
    return run;
}

/* Checks status and words, and frees the run. */
static void expect_run(struct run run, int status, const char *words)
{
    if (run.status != status || !run.text.data || !strstr(run.text.data, words))
        fail_msg("expected exit %d with \"%s\", got %d:\n%s", status, words, run.status,
                 run.text.data ? run.text.data : "");
    buffer_free(&run.text);
}

static void test_machine(void **state)
{
    (void)state;
    expect_run(run_check("--device", "host", NULL), 0, "machine\n");
    expect_run(run_check("--device", "host", NULL), 0, "/cache, writable, 0 kernels\n");
    expect_run(run_check("--device", "host", NULL), 0, "\nready\n");
    expect_run(run_check("--help", NULL), 0, "elpis check [MODEL] [OPTION...]");
}

static void test_tiny(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "  family     Qwen3_5ForCausalLM\n",
        "  layers     8: 2 attention, 6 Gated DeltaNet\n",
        "  weights    EXL3 mul1, 4 bits in layer 0; head EXL3 mul1, 6 bits\n",
        "  tokenizer  4096 ids\n",
        "  template   found\n",
        "memory plan for a context of 2000 tokens, 4-bit cache\n",
        "  logits and sampler of 8 rows             0.532 MiB\n",
        "\nready\n"};
    struct run run = run_check(TINY, "--device", "host", "--context", "2000", "--kv-bits", "4",
                               NULL);
    assert_int_equal(run.status, 0);
    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        if (!strstr(run.text.data, lines[i]))
            fail_msg("missing: %s in:\n%s", lines[i], run.text.data);
    }
    buffer_free(&run.text);
}

static void test_draft(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "  draft      DFlash2DraftModel, 2 layers, taps after 1 3 6, block 8, window 128, selector "
        "of rank 64 over 16, its own calibration, whole head\n",
        "  draft weights  ", "  draft keys and values                    0.133 MiB\n", "\nready\n"};
    struct run run = run_check(TINY, "--device", "host", "--draft", TINY "-dflash2", NULL);
    assert_int_equal(run.status, 0);
    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        if (!strstr(run.text.data, lines[i]))
            fail_msg("missing: %s in:\n%s", lines[i], run.text.data);
    }
    buffer_free(&run.text);
    expect_run(
        run_check(TINY, "--device", "host", "--draft", TINY "-dflash2", "--tap-shift", "1", NULL),
        0, "taps after 2 4 7, ");
    expect_run(run_check(TINY, "--device", "host", "--draft", TINY, NULL), ERROR_MODEL,
               "architectures is \"Qwen3_5ForCausalLM\", supported: \"DFlash2DraftModel\"");
    expect_run(run_check("--draft", TINY "-dflash2", NULL), ERROR_USAGE, "give the folder MODEL");
}

/* Windows of some layers, a calibration and a reduced head of its own. */
static void test_draft_variants(void **state)
{
    (void)state;
    struct draft_options options;
    struct error error = {0};
    make_draft_defaults(&options, folder);
    options.base.vocab = 4096;
    options.target_layers = 8;
    options.version_1 = true;
    if (make_draft(&options, &error) < 0)
        fail_msg("%s", error.text);
    replace_in_file("config.json", "\"use_sliding_window\"",
                    "\"layer_types\": [\"full_attention\", \"sliding_attention\"], "
                    "\"use_sliding_window\"");
    write_text("calibration.json", "{\"temperature\": [1, 1, 1, 1, 1, 1, 1], "
                                   "\"recall\": [1, 1, 1, 1, 1, 1, 1]}");
    write_text("draft_head.json", "{\"blocks\": [0, 31]}");
    expect_run(run_check(TINY, "--device", "host", "--draft", folder, NULL), 0,
               "  draft      DFlashDraftModel, 2 layers, taps after 0 2, block 4, window 32 in 1 "
               "of them, no selector, its own calibration, head of 2 blocks\n");
}

static void test_27b(void **state)
{
    (void)state;
    struct make_options options;
    make_27b(&options, folder);
    options.tokenizer = TINY;
    make_good(&options);
    expect_run(run_check(folder, "--device", "host", "--memory", "23", NULL), 0,
               "memory plan for a context of 262144 tokens, 3-bit cache\n");
    expect_run(run_check(folder, "--device", "host", "--memory", "23", NULL), 0,
               "333 vision tensors, 39 mtp tensors and vision_config are ignored");
    expect_run(run_check(folder, "--device", "host", "--memory", "16", NULL), 0, "\nready\n");
    expect_run(run_check(folder, "--device", "host", "--memory", "16", "--context", "262144", NULL),
               ERROR_MEMORY, "has 16.00 GiB free, but a context of 262144 tokens");
    expect_run(run_check(folder, "--device", "host", "--memory", "8", NULL), ERROR_MEMORY,
               "not ready\n");
    struct draft_options draft;
    struct error error = {0};
    make_27b_draft(&draft, in_folder("draft"));
    if (make_draft(&draft, &error) < 0)
        fail_msg("%s", error.text);
    expect_run(run_check(folder, "--device", "host", "--memory", "23", "--draft",
                         in_folder("draft"), NULL),
               0, "memory plan for a context of 262144 tokens, 3-bit cache\n");
}

static void test_model_failures(void **state)
{
    (void)state;
    expect_run(run_check("/nowhere", "--device", "host", NULL), ERROR_MODEL,
               "elpis: /nowhere is not a folder");
    make_default();
    expect_run(run_check(folder, "--device", "host", NULL), ERROR_MODEL, "tokenizer");
    struct make_options options;
    make_defaults(&options, folder);
    options.tokenizer = TINY;
    make_good(&options);
    expect_run(run_check(folder, "--device", "host", NULL), ERROR_MODEL,
               "the tokenizer has 4096 ids, but vocab_size in config.json is 512");
    options.vocab = 4096;
    make_good(&options);
    expect_run(run_check(folder, "--device", "host", NULL), 0, "\nready\n");
    unlink(in_folder("model.safetensors"));
    expect_run(run_check(folder, "--device", "host", NULL), ERROR_MODEL, "no *.safetensors file");
}

static void test_usage(void **state)
{
    (void)state;
    expect_run(run_check(TINY, "--device", "host", "--context", "262145", NULL), ERROR_USAGE,
               "--context 262145 is more than the 262144 tokens of elpis-tiny");
    expect_run(run_check("--memory", "-1", NULL), ERROR_USAGE, "--memory -1");
    expect_run(run_check("--kv-bits", "9", NULL), ERROR_USAGE, "--kv-bits expects 2 to 8 or 16");
    expect_run(run_check("--nonsense", NULL), ERROR_USAGE, "unknown option '--nonsense'");
    expect_run(run_check("--device", "abacus", NULL), ERROR_USAGE, "abacus");
    expect_run(run_check("one", "two", NULL), ERROR_USAGE, "one argument too many");
}

static void test_no_such_gpu(void **state)
{
    (void)state;
    expect_run(run_check(TINY, "--device", "cuda:99", NULL), ERROR_DEVICE, "not ready\n");
    expect_run(run_check(TINY, "--device", "cuda:99", NULL), ERROR_DEVICE, "memory plan for");
}

static void test_cache_unusable(void **state)
{
    (void)state;
    expect_run(run_check("--device", "host", "--cache", "/dev/null/cache", NULL), 0,
               "none: kernels are compiled at every start");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(test_machine),
        TEST_IN_FOLDER(test_tiny),
        TEST_IN_FOLDER(test_draft),
        TEST_IN_FOLDER(test_draft_variants),
        TEST_IN_FOLDER(test_27b),
        TEST_IN_FOLDER(test_model_failures),
        TEST_IN_FOLDER(test_usage),
        TEST_IN_FOLDER(test_no_such_gpu),
        TEST_IN_FOLDER(test_cache_unusable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
