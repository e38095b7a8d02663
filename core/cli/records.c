#include "cli/cli.h"
static int run_records(const struct command *command, int argc, char **argv)
{ (void)command; (void)argc; (void)argv; return 0; }
const struct command command_records = {.name = "records", .summary = "tuning records", .run = run_records};
