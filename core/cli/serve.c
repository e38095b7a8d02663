/* serve.c - `elpis serve`: options of the server, and the line that says where it listens.
 *
 * That line goes to standard output, so that a script can wait for it; everything
 * else goes to the log.
 */
#include <stdio.h>

#include "cli/cli.h"
#include "cli/program.h"
#include "serve/serve.h"
#include "text/text.h"

enum { OWN_OPTIONS = 8 };

int serve_open_engine(void *user, struct engine **engine, struct error *error)
{
    struct serve_opening *opening = user;
    struct tokenizer *tokenizer;
    if (tokenizer_open(&tokenizer, opening->folder, error) < 0)
        return -1;
    opening->options.valid_vocab = tokenizer_count(tokenizer); /* no id above has a text */
    tokenizer_close(tokenizer);
    return engine_open(engine, opening->folder, &opening->options, error);
}

static void on_ready(void *user, const char *url)
{
    (void)user;
    printf("listening on %s\n", url);
    fflush(stdout);
}

static int run_serve(const struct command *command, int argc, char **argv)
{
    struct engine_flags flags = {0};
    u32 snapshots = SNAPSHOT_MB;
    struct serve_options options = {
        .listen = "127.0.0.1:18020", .version = PROGRAM_VERSION, .on_ready = on_ready};
    struct option_entry entries[ENGINE_OPTION_COUNT + OWN_OPTIONS] = {
        {'l', "listen", "HOST:PORT",
         "Where to listen; port 0 picks a free one. Default: 127.0.0.1:18020.", OPTION_TEXT,
         &options.listen},
        {0, "key-file", "FILE",
         "Ask every client for this bearer key: one line in a file of mode 0400 or 0600.",
         OPTION_TEXT, &options.key_file},
        {0, "cors", "ORIGIN", "Let web pages of this origin read answers; * lets all.", OPTION_TEXT,
         &options.cors_origin},
        {0, "model-name", "NAME", "The model's id in the API. Default: the folder's name.",
         OPTION_TEXT, &options.model_name},
        {0, "queue", "COUNT", "Requests that may wait; one more is answered 503. Default: 64.",
         OPTION_U32, &options.queue},
        {0, "max-body", "BYTES", "Longest request body. Default: 33554432.", OPTION_U32,
         &options.max_body},
        {0, "max-tokens", "COUNT",
         "Longest answer where the request does not say. Default: 4096, or what fits.", OPTION_U32,
         &options.default_max_tokens},
        SNAPSHOTS_OPTION(&snapshots),
    };
    struct serve_opening opening;
    struct error error;
    size_t count = OWN_OPTIONS + engine_option_entries(&flags, entries + OWN_OPTIONS);
    options_parse(command, entries, count, argc, argv, (char **)&opening.folder, 1, 1);
    engine_options_finish(command, &flags, &opening.options);
    opening.options.snapshots = (u64)snapshots << 20;
    options.draft = opening.options.draft;
    if (serve_run(&options, opening.folder, serve_open_engine, &opening, &error) < 0)
        return command_fail(&error);
    return 0;
}

const struct command command_serve = {
    .name = "serve",
    .summary = "answer an OpenAI-compatible HTTP API",
    .synopsis = "elpis serve MODEL [OPTION...]",
    .description =
        "Loads the model in the folder MODEL and answers POST /v1/chat/completions and\n"
        "POST /v1/completions, blocking or streamed, GET /v1/models, GET /health and, as\n"
        "Prometheus text, GET /metrics. One request is computed at a time, others wait in a\n"
        "queue.\n"
        "\n"
        "With --snapshots a prompt that begins like the one before, the next turn of a chat say,\n"
        "is computed from where they part; \"usage\" tells these tokens as cached_tokens. A\n"
        "stream that waits for a long prompt is told its progress in comments.\n"
        "\n"
        "With --draft answers come sooner and are the same; \"usage\" then also tells accepted\n"
        "and rejected tokens of the draft, rounds, tokens_per_round and ms_per_round.\n"
        "\n"
        "The line \"listening on URL\" on standard output says that the socket is open. The\n"
        "model is loaded after it: until then /health answers 503 \"loading\".\n"
        "\n"
        "Without --key-file only addresses of this machine can be listened on, the Host\n"
        "header must name it, and web pages of other origins are refused.\n"
        "\n"
        "SIGTERM or SIGINT: waiting and new requests are refused with 503, running ones are\n"
        "finished within 40 seconds. A second signal ends the program at once.",
    .epilogue =
        "Examples:\n"
        "  elpis serve models/elpis-tiny --listen 127.0.0.1:18020\n"
        "  curl http://127.0.0.1:18020/v1/chat/completions -d '{\"messages\":\n"
        "    [{\"role\": \"user\", \"content\": \"Count from 3 to 14.\"}], \"stream\": true}'\n"
        "\n"
        "Exit status: 0 after a drain, 2 usage or key file, 3 model files, 4 GPU or driver,\n"
        "5 memory, 6 address in use, 7 the device failed while running.\n",
    .run = run_serve,
};
