/* test_cross_compile.c - NVRTC without a GPU: the prelude for several targets, and bad libraries.
 *
 * Skipped where NVRTC is not installed. Broken libraries are small files made here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/driver.h"
#include "jit/jit_private.h"

static void must(int status, const struct error *error)
{
    if (status != 0)
        fail_msg("%s", error->text);
}

static bool nvrtc_is_here(void)
{
    struct error error;
    struct buffer image = {0};
    int status = device_cross_compile(NULL, SLICE("extern \"C\" __global__ void f() {}"), "f",
                                      "sm_86", &image, NULL, &error);
    buffer_free(&image);
    return status == 0;
}

static void prelude_source(struct buffer *source)
{
    static const char *const files[] = {"templates/prelude/cuda.h", "templates/prelude/math.h",
                                        "tests/device/prelude_all.cu"};
    struct error error;
    struct buffer text = {0};
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        must(file_read(&text, files[i], 1 << 20, &error), &error);
        buffer_format(source, "#line 1 \"%s\"\n", files[i]);
        buffer_add_slice(source, buffer_slice(&text));
    }
    buffer_free(&text);
}

static void every_primitive_compiles_without_spills(void **state)
{
    (void)state;
    static const char *const targets[] = {"sm_80", "sm_86", "sm_89", "sm_90"};
    struct error error;
    struct buffer source = {0}, image = {0};
    if (!nvrtc_is_here())
        skip();
    prelude_source(&source);
    for (size_t i = 0; i < COUNT_OF(targets); i++) {
        struct device_resources resources = {0};
        must(device_cross_compile(NULL, buffer_slice(&source), "prelude_all", targets[i], &image,
                                  &resources, &error),
             &error);
        assert_memory_equal(image.data, "\177ELF", 4);
        assert_in_range(resources.registers, 16, 255);
        assert_int_equal(resources.spill_stores, 0);
        assert_int_equal(resources.spill_loads, 0);
        assert_int_equal(resources.local_bytes, 0);
    }
    buffer_free(&source);
    buffer_free(&image);
}

/* Blanks out every instruction of f_exp2_approx; returns how many there were. */
static u32 without_own_bits(struct buffer *ptx)
{
    static const char own[] = "ex2.approx.ftz.f32";
    u32 count = 0;
    for (char *at = ptx->data; (at = strstr(at, own)) != NULL; count++)
        memset(at, ' ', sizeof own - 1);
    return count;
}

/* Nothing in the PTX may be contracted, approximate or flush denormals, but the one primitive that
 * says so. */
static void arithmetic_keeps_its_rounding(void **state)
{
    (void)state;
    static const char *const forbidden[] = {".approx", ".ftz", "fma.f32", "mad.f32", "ex2", "lg2"};
    static const char *const expected[] = {"add.rn.f32",  "mul.rn.f32", "sub.rn.f32", "div.rn.f32",
                                           "sqrt.rn.f32", "fma.rn.f32", "add.rn.f16", "fma.rn.f16"};
    struct error error;
    struct buffer source = {0}, ptx = {0};
    if (!nvrtc_is_here())
        skip();
    prelude_source(&source);
    must(device_cross_compile(NULL, buffer_slice(&source), "prelude_all", "compute_86", &ptx, NULL,
                              &error),
         &error);
    assert_int_equal(without_own_bits(&ptx), 1);
    for (size_t i = 0; i < COUNT_OF(forbidden); i++)
        if (strstr(ptx.data, forbidden[i]))
            fail_msg("the PTX contains %s", forbidden[i]);
    for (size_t i = 0; i < COUNT_OF(expected); i++)
        if (!strstr(ptx.data, expected[i]))
            fail_msg("the PTX does not contain %s", expected[i]);
    buffer_free(&source);
    buffer_free(&ptx);
}

static void spills_and_shared_memory_are_counted(void **state)
{
    (void)state;
    static const char source[] =
        "extern \"C\" __global__ void __launch_bounds__(1024) f(float *p, int n) {\n"
        "    __shared__ float s[1000]; float v[160];\n"
        "    _Pragma(\"unroll\") for (int i = 0; i < 160; i++) v[i] = p[i * n];\n"
        "    s[threadIdx.x] = v[0]; __syncthreads();\n"
        "    for (int k = 0; k < n; k++)\n"
        "        _Pragma(\"unroll\") for (int i = 0; i < 160; i++) v[i] = v[i] * v[(i * 7 + 1) % "
        "160]"
        " + s[k];\n"
        "    _Pragma(\"unroll\") for (int i = 0; i < 160; i++) p[i * n] = v[i];\n"
        "}\n";
    struct error error;
    struct buffer image = {0};
    struct device_resources resources = {0};
    if (!nvrtc_is_here())
        skip();
    must(device_cross_compile(NULL, SLICE(source), "f", "sm_86", &image, &resources, &error),
         &error);
    assert_int_equal(resources.shared_static, 4000);
    assert_int_equal(resources.registers, 64);
    assert_true(resources.spill_stores > 0 && resources.spill_loads > 0);
    buffer_free(&image);
}

static void compiler_errors_name_file_and_line(void **state)
{
    (void)state;
    struct error error;
    struct buffer image = {0};
    if (!nvrtc_is_here())
        skip();
    const struct slice source = SLICE("#line 41 \"templates/some.cu\"\nvoid f( {\n");
    assert_int_equal(device_cross_compile(NULL, source, "some", "sm_86", &image, NULL, &error), -1);
    assert_int_equal(error.code, ERROR_DEVICE);
    assert_non_null(strstr(error.text, "templates/some.cu(41)"));
    buffer_free(&image);
}

/* A raw operator on the prelude's f32 must not compile. */
static void raw_arithmetic_does_not_compile(void **state)
{
    (void)state;
    struct error error;
    struct buffer source = {0}, image = {0};
    if (!nvrtc_is_here())
        skip();
    prelude_source(&source);
    buffer_add_text(&source, "FN f32 raw(f32 a, f32 b, f32 c) { return a * b + c; }\n");
    assert_int_equal(
        device_cross_compile(NULL, buffer_slice(&source), "raw", "sm_86", &image, NULL, &error),
        -1);
    assert_non_null(strstr(error.text, "operator"));
    buffer_free(&source);
    buffer_free(&image);
}

static void unknown_targets_are_refused(void **state)
{
    (void)state;
    struct error error;
    struct buffer image = {0};
    const struct slice source = SLICE("extern \"C\" __global__ void f() {}");
    assert_int_equal(device_cross_compile(NULL, source, "f", "rtx3090", &image, NULL, &error), -1);
    assert_int_equal(error.code, ERROR_USAGE);
    assert_non_null(strstr(error.text, "rtx3090"));
    if (nvrtc_is_here()) {
        assert_int_equal(device_cross_compile(NULL, source, "f", "sm_35", &image, NULL, &error),
                         -1);
        assert_int_equal(error.code, ERROR_DEVICE);
        assert_non_null(strstr(error.text, "sm_35"));
    }
    buffer_free(&image);
}

/* ---- libraries that do not work: one sentence each */

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/elpis-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) == 0 ? 0 : -1;
}

/* A library made of C text. */
static void make_library(const char *name, const char *text)
{
    char path[200], command[600];
    struct error error;
    snprintf(path, sizeof path, "%s/source.c", folder);
    must(file_write_atomic(path, text, strlen(text), &error), &error);
    snprintf(command, sizeof command, "cc -shared -fPIC -w -o %s/%s %s", folder, name, path);
    assert_int_equal(system(command), 0);
}

static void expect_compile_error(const char *part)
{
    struct error error = {0};
    struct buffer image = {0};
    const struct slice source = SLICE("extern \"C\" __global__ void f() {}");
    assert_int_equal(device_cross_compile(folder, source, "f", "sm_86", &image, NULL, &error), -1);
    assert_int_equal(error.code, ERROR_DEVICE);
    if (!strstr(error.text, part))
        fail_msg("expected \"%s\" in: %s", part, error.text);
    buffer_free(&image);
}

static void a_broken_compiler_is_named(void **state)
{
    (void)state;
    char path[200];
    struct error error;
    snprintf(path, sizeof path, "%s/libnvrtc.so.13", folder);
    must(file_write_atomic(path, "not a library", 13, &error), &error);
    expect_compile_error("cannot be loaded");
}

static void a_compiler_without_functions_is_too_old(void **state)
{
    (void)state;
    make_library("libnvrtc.so.12",
                 "int nvrtcVersion(int *a, int *b) { *a = 12; *b = 0; return 0; }");
    expect_compile_error("too old");
}

static const char fake_nvrtc[] =
    "int nvrtcVersion(int *a, int *b) { *a = MAJOR; *b = 2; return 0; }\n"
    "const char *nvrtcGetErrorString(int r) { return \"a fake's error\"; }\n"
    "int nvrtcGetNumSupportedArchs(int *n) { *n = 1; return 0; }\n"
    "int nvrtcGetSupportedArchs(int *a) { *a = 86; return 0; }\n"
    "int nvrtcCreateProgram() { return 1; }\n"
    "int nvrtcDestroyProgram() { return 0; } int nvrtcCompileProgram() { return 1; }\n"
    "int nvrtcGetProgramLogSize() { return 1; } int nvrtcGetProgramLog() { return 1; }\n"
    "int nvrtcGetCUBINSize() { return 1; } int nvrtcGetCUBIN() { return 1; }\n"
    "int nvrtcGetPTXSize() { return 1; } int nvrtcGetPTX() { return 1; }\n";

static void an_old_compiler_is_refused_with_its_version(void **state)
{
    (void)state;
    char text[2000];
    snprintf(text, sizeof text, "#define MAJOR 11\n%s", fake_nvrtc);
    make_library("libnvrtc.so.12", text);
    expect_compile_error("11.2, too old");
}

static void a_failing_compiler_is_reported(void **state)
{
    (void)state;
    char text[2000];
    snprintf(text, sizeof text, "#define MAJOR 12\n%s", fake_nvrtc);
    make_library("libnvrtc.so.13", text);
    expect_compile_error("a fake's error");
}

static void expect_open_error(const char *part)
{
    struct error error = {0};
    struct device *device = NULL;
    const struct device_options options = {.device = "cuda", .cuda_libraries = folder};
    assert_int_equal(device_open(&device, &options, &error), -1);
    assert_int_equal(error.code, ERROR_DEVICE);
    if (!strstr(error.text, part))
        fail_msg("expected \"%s\" in: %s", part, error.text);
}

static void a_broken_driver_is_named(void **state)
{
    (void)state;
    char path[200];
    struct error error;
    snprintf(path, sizeof path, "%s/libcuda.so.1", folder);
    must(file_write_atomic(path, "not a library", 13, &error), &error);
    expect_open_error("cannot be loaded");
}

/* A driver with every function of the table, whose version and cuInit result are given. */
static void make_driver(int version, int init)
{
#define CU_NAME(member, symbol, arguments) symbol,
    static const char *const plain[] = {CU_FUNCTIONS(CU_NAME)};
#undef CU_NAME
    struct buffer text = {0};
    for (size_t i = 0; i < COUNT_OF(plain); i++)
        if (strcmp(plain[i], "cuInit") != 0 && strcmp(plain[i], "cuDriverGetVersion") != 0)
            buffer_format(&text, "int %s() { return 0; }\n", plain[i]);
    buffer_format(&text,
                  "int cuInit(unsigned f) { return %d; }\n"
                  "int cuDriverGetVersion(int *v) { *v = %d; return 0; }\n",
                  init, version);
    make_library("libcuda.so.1", text.data);
    buffer_free(&text);
}

static void an_old_driver_is_refused_with_versions(void **state)
{
    (void)state;
    make_driver(11080, 0);
    expect_open_error("it runs CUDA 11.8, 12.0 or later is needed");
}

static void a_driver_without_a_gpu_says_so(void **state)
{
    (void)state;
    make_driver(13000, 100);
    expect_open_error("no NVIDIA GPU was found");
}

static void a_mismatched_driver_says_so(void **state)
{
    (void)state;
    make_driver(13000, 803);
    expect_open_error("do not match");
}

static void a_driver_without_functions_is_too_old(void **state)
{
    (void)state;
    make_library("libcuda.so.1", "int cuInit(unsigned f) { return 0; }");
    expect_open_error("too old");
}

#define WITH_FOLDER(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_primitive_compiles_without_spills),
        cmocka_unit_test(arithmetic_keeps_its_rounding),
        cmocka_unit_test(spills_and_shared_memory_are_counted),
        cmocka_unit_test(compiler_errors_name_file_and_line),
        cmocka_unit_test(raw_arithmetic_does_not_compile),
        cmocka_unit_test(unknown_targets_are_refused),
        WITH_FOLDER(a_broken_compiler_is_named),
        WITH_FOLDER(a_compiler_without_functions_is_too_old),
        WITH_FOLDER(an_old_compiler_is_refused_with_its_version),
        WITH_FOLDER(a_failing_compiler_is_reported),
        WITH_FOLDER(a_broken_driver_is_named),
        WITH_FOLDER(an_old_driver_is_refused_with_versions),
        WITH_FOLDER(a_driver_without_a_gpu_says_so),
        WITH_FOLDER(a_mismatched_driver_says_so),
        WITH_FOLDER(a_driver_without_functions_is_too_old),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
