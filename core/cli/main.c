/* main.c - the program: finds the subcommand, or answers about itself.
 *
 * `elpis COMMAND ...` hands argv on to the command's own file (run.c, serve.c, ...)
 * with argv[0] = the command's name. Everything else here is --help, --version and
 * --licenses. The table of commands is the only place that knows them all.
 *
 * Not here: options (options.c), notices (licenses.c), any work.
 */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/program.h"

static const struct command *const commands[] = {
    &command_run,  &command_serve,     &command_check,  &command_kernels,
    &command_eval, &command_calibrate, &command_synth,  &command_bench,
    &command_tune, &command_records,   &command_script,
};

static void print_help(void)
{
    printf("NAME\n    elpis - run EXL3 language models on an NVIDIA GPU or on the CPU\n\n"
           "SYNOPSIS\n    elpis COMMAND [ARGUMENT...]\n\n"
           "COMMANDS\n");
    for (size_t i = 0; i < COUNT_OF(commands); i++)
        printf("    %-10s %s\n", commands[i]->name, commands[i]->summary);
    printf("\nOPTIONS\n"
           "    --help        print this text; `elpis COMMAND --help` describes a command\n"
           "    --version     print the version\n"
           "    --licenses    print the notices of the libraries in this program\n\n"
           "EXIT STATUS\n"
           "    0  success\n"
           "    2  command line or configuration\n"
           "    3  model files\n"
           "    4  GPU, driver or compiler\n"
           "    5  does not fit into memory\n"
           "    6  listening address in use\n"
           "    7  the device failed while running\n");
}

static int unknown_command(const char *name)
{
    fprintf(stderr, "elpis: unknown %s '%s'; `elpis --help` lists the commands\n",
            name[0] == '-' ? "option" : "command", name);
    return ERROR_USAGE;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "elpis: a command is missing; `elpis --help` lists the commands\n");
        return ERROR_USAGE;
    }
    const char *name = argv[1];
    for (size_t i = 0; i < COUNT_OF(commands); i++)
        if (strcmp(name, commands[i]->name) == 0)
            return commands[i]->run(commands[i], argc - 1, argv + 1);
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0)
        print_help();
    else if (strcmp(name, "--version") == 0)
        printf("elpis %s\n", PROGRAM_VERSION);
    else if (strcmp(name, "--licenses") == 0)
        licenses_print(stdout);
    else
        return unknown_command(name);
    return fflush(stdout) == 0 ? 0 : ERROR_USAGE;
}
