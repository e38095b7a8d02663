/* script.c - `elpis script`: options of the kernel workshop; core/script runs the file. */
#include <signal.h>

#include "cli/cli.h"
#include "script/script.h"

static int run(const struct command *command, int argc, char **argv)
{
    struct script_options options = {0};
    struct error error;
    const struct option_entry entries[] = {
        {0, "device", "NAME",
         "What elpis.device() opens: auto, cuda, cuda:N or host. Default: auto, a GPU if there\n"
         "is one.",
         OPTION_TEXT, &options.device.device},
        {0, "as", "PLAN",
         "Run the plan of another GPU, given as architecture, multiprocessors and shared\n"
         "memory of each: sm_86:82:100K.",
         OPTION_TEXT, &options.device.as},
        {0, "cache", "FOLDER",
         "Where compiled kernels are kept. Default: $ELPIS_CACHE, $XDG_CACHE_HOME/elpis,\n"
         "~/.cache/elpis.",
         OPTION_TEXT, &options.cache},
        {0, "schedules", "FOLDER",
         "Lua, schedules and templates that replace the built-in ones where the script names\n"
         "a schedule.",
         OPTION_TEXT, &options.schedules},
        {0, "cuda-libraries", "FOLDER", "Where to look first for libcuda and libnvrtc.",
         OPTION_TEXT, &options.device.cuda_libraries},
        {0, "threads", "COUNT", "Threads of the host device. Default: one a core.", OPTION_U32,
         &options.device.host_threads},
        {0, "order", "NUMBER",
         "Host device: the order in which a block's threads run: 0 forward, 1 reverse, others\n"
         "random from that seed. Default: 0.",
         OPTION_U32, &options.device.host_order},
        {0, "check", NULL,
         "Host device: guard every tensor and look for races. A launch that writes outside its\n"
         "tensors, or whose threads race, ends the script. Slow.",
         OPTION_FLAG, &options.device.host_check},
    };
    /* the file, its arguments, and NULL */
    char **operands = memory_alloc(((size_t)argc + 1) * sizeof *operands);
    options_parse(command, entries, COUNT_OF(entries), argc, argv, operands, 1, (size_t)argc);
    options.file = operands[0];
    options.arguments = operands + 1;
    int signal;
    const int status = script_run(&options, &signal, &error);
    memory_free(operands);
    if (status == 0)
        return 0;
    const int code = command_fail(&error);
    if (signal)
        raise(signal); /* so that the shell sees what ended it */
    return code;
}

const struct command command_script = {
    .name = "script",
    .summary = "define, check, time and install kernels with a Lua script",
    .synopsis = "elpis script [OPTION...] FILE.lua [ARGUMENT...]",
    .description =
        "Runs a Lua 5.4 script in which `require \"elpis\"` gives the kernel workshop: schedules\n"
        "and templates, in the script or in files; tensors; launches; checks against a reference\n"
        "or another schedule; timing of candidates side by side; tables, CSV and plots; and\n"
        "installation into a folder that --schedules of the other commands takes.\n"
        "\n"
        "The tutorial is schedules/README.md, the reference schedules/SCRIPT.md. What follows\n"
        "FILE.lua is the script's own and stands in the table `arg`. An error is one line that\n"
        "begins with the script's FILE:LINE.",
    .epilogue =
        "EXAMPLES\n"
        "    elpis script schedules/examples/softmax.lua\n"
        "    elpis script --check --device host schedules/examples/softmax.lua\n"
        "    elpis script schedules/examples/activate_rows.lua mine\n"
        "\n"
        "EXIT STATUS\n"
        "    0  the script ended, or called os.exit(true)\n"
        "    2  an error in the script, or a check that did not pass\n"
        "    4  a kernel does not compile, or no such device\n"
        "    5  does not fit into memory\n"
        "    7  the device failed, or --check found a fault\n"
        "\n"
        "Ctrl-C ends the script where it is, and leaves nothing behind; a second one does not\n"
        "wait for what is being compiled or timed.",
    .run = run,
    .ends_at_operand = true,
};
