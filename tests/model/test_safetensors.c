/* test_safetensors.c - tensor files: what the reader accepts, every refusal with its
 * sentence, and what the writer writes.
 */
#include "model/support.h"

/* A file "t.safetensors" of this header and so many bytes of data. */
static void write_tensors(const char *header, size_t data_size)
{
    struct buffer bytes = {0};
    u64 length = strlen(header);
    buffer_add(&bytes, &length, sizeof length);
    buffer_add_text(&bytes, header);
    u8 *data = buffer_extend(&bytes, data_size);
    for (size_t i = 0; i < data_size; i++)
        data[i] = (u8)i;
    write_file("t.safetensors", bytes.data, bytes.size);
    buffer_free(&bytes);
}

static void expect_file_refused(const char *words)
{
    struct tensor_file *file = NULL;
    struct error error = {0};
    assert_int_equal(tensor_file_open(&file, in_folder("t.safetensors"), &error), -1);
    assert_null(file);
    expect_error(&error, ERROR_MODEL, words);
    if (!strstr(error.text, "t.safetensors"))
        fail_msg("the sentence must name the file: %s", error.text);
}

static struct tensor_file *open_file(void)
{
    struct tensor_file *file = NULL;
    struct error error = {0};
    if (tensor_file_open(&file, in_folder("t.safetensors"), &error) < 0)
        fail_msg("%s", error.text);
    return file;
}

#define TWO                                                            \
    "{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}," \
    "\"a\":{\"dtype\":\"I16\",\"shape\":[2,1],\"data_offsets\":[8,12]}}"

static void test_reads(void **state)
{
    (void)state;
    write_tensors(TWO, 12);
    struct tensor_file *file = open_file();
    assert_int_equal(tensor_file_count(file), 2);
    const struct tensor *a = tensor_file_find(file, "a"), *b = tensor_file_find(file, "b");
    assert_ptr_equal(tensor_file_at(file, 0), a);
    assert_ptr_equal(tensor_file_at(file, 1), b);
    assert_null(tensor_file_at(file, 2));
    assert_null(tensor_file_find(file, "c"));
    assert_int_equal(a->dtype, DTYPE_I16);
    assert_int_equal(a->rank, 2);
    assert_int_equal(a->shape[0], 2);
    assert_int_equal(a->shape[1], 1);
    assert_int_equal(a->count, 2);
    assert_int_equal(a->bytes, 4);
    assert_memory_equal(a->data, "\x08\x09\x0a\x0b", 4);
    assert_memory_equal(b->data, "\x00\x01\x02\x03", 4);
    assert_string_equal(a->file, in_folder("t.safetensors"));
    tensor_file_close(file);
}

static void test_accepts(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
    } good[] = {
        {"{}", 0},
        {"{\"__metadata__\":{\"format\":\"pt\"}}        ", 0},
        {"{\"s\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4},
        {"{\"e\":{\"dtype\":\"F64\",\"shape\":[3,0],\"data_offsets\":[2,2]},"
         "\"f\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
         2},
        {"{\"r\":{\"dtype\":\"BF16\",\"shape\":[1,1,1,1,1,1,1,2],\"data_offsets\":[0,4]}}", 4},
        {"{\"a\":{\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"b\":{\"dtype\":\"U16\",\"shape\":[1],\"data_offsets\":[1,3]},"
         "\"c\":{\"dtype\":\"U32\",\"shape\":[1],\"data_offsets\":[3,7]},"
         "\"d\":{\"dtype\":\"U64\",\"shape\":[1],\"data_offsets\":[7,15]},"
         "\"e\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[15,16]},"
         "\"f\":{\"dtype\":\"F8_E5M2\",\"shape\":[1],\"data_offsets\":[16,17]}}",
         17},
    };
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        write_tensors(good[i].header, good[i].data);
        tensor_file_close(open_file());
    }
}

static void test_file_as_a_whole(void **state)
{
    (void)state;
    expect_file_refused("cannot open");
    write_text("t.safetensors", "");
    expect_file_refused("0 bytes long, too short");
    write_text("t.safetensors", "1234567");
    expect_file_refused("7 bytes long, too short");
    write_text("t.safetensors", "version https://git-lfs.github.com/spec/v1\n"
                                "oid sha256:aa\nsize 123456789\n");
    expect_file_refused("Git LFS pointer of 72 bytes, not the file of 123456789 bytes");
    write_file("t.safetensors", "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    expect_file_refused("claim a header of 18446744073709551615 bytes");
    write_file("t.safetensors", "\x00\xe1\xf5\x06\x00\x00\x00\x00{}", 10);
    expect_file_refused("claim a header of 116777216 bytes, more than the 100000000 allowed");
    write_file("t.safetensors", "\x03\x00\x00\x00\x00\x00\x00\x00{}", 10);
    expect_file_refused("its header alone needs 8 + 3: the file was cut short");
    write_tensors(TWO, 11);
    expect_file_refused("is 129 bytes long, but its header promises 8 + 110 + 12: the file was "
                        "cut short");
    write_tensors(TWO, 13);
    expect_file_refused("8 + 110 + 12: bytes follow the last tensor");
    mkdir(in_folder("folder"), 0700);
    struct tensor_file *file = NULL;
    struct error error = {0};
    assert_int_equal(tensor_file_open(&file, in_folder("folder"), &error), -1);
    expect_error(&error, ERROR_MODEL, "folder");
}

#define ONE(dtype, shape, offsets) \
    "{\"x\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void test_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        const char *words;
    } bad[] = {
        {"", 0, "not valid JSON"},
        {"[]", 0, "the header is a list, expected a JSON object"},
        {"{\"x\":", 0, "not valid JSON"},
        {"{} {}", 0, "not valid JSON"},
        {"{\"x\":1}", 0, "tensor x: its header entry is an integer, expected an object"},
        {"{\"\xff\":1}", 0, "not valid JSON"},
        {"{\"a\\n\\u001b[2Jb\":1}", 0, "tensor a??[2Jb: its header entry is an integer"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
         1, "duplicate object key"},
        {ONE("\"U8\"", "[1]", "[0,1,2]"), 1, "tensor x: data_offsets must be two integers"},
        {ONE("\"U8\"", "[1]", "[1,0]"), 1, "0 <= begin <= end"},
        {ONE("\"U8\"", "[1]", "[-1,0]"), 1, "0 <= begin <= end"},
        {ONE("\"U8\"", "[1]", "[0,1.0]"), 1, "data_offsets must be two integers"},
        {ONE("\"U8\"", "[1]", "null"), 0, "data_offsets must be two integers"},
        {ONE("\"U8\"", "[1]", "[0,99999999999999999999]"), 1, "not valid JSON"},
        {ONE("\"U8\"", "[1]", "[0,9223372036854775807]"), 1, "9223372036854775807: the file was"},
        {ONE("\"F4\"", "[2]", "[0,1]"), 1, "tensor x has dtype \"F4\", which is not known"},
        {ONE("7", "[1]", "[0,1]"), 1, "tensor x: dtype is an integer, expected a string"},
        {ONE("\"U8\"", "1", "[0,1]"), 1, "tensor x: shape is an integer, expected a list"},
        {ONE("\"U8\"", "[-1]", "[0,1]"), 1, "shape[0] must be an integer of at least 0"},
        {ONE("\"U8\"", "[1.5]", "[0,1]"), 1, "shape[0] must be an integer"},
        {ONE("\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, "has 9 dimensions, at most 8"},
        {ONE("\"U8\"", "[4294967296,4294967296]", "[0,1]"), 1,
         "its shape overflows 64 bits at dimension 1"},
        {ONE("\"F64\"", "[4611686018427387904]", "[0,0]"), 0, "needs 0 bytes"},
        {ONE("\"F16\"", "[3,5]", "[0,31]"), 31,
         "tensor x: shape [3, 5] of F16 needs 30 bytes, but its data_offsets span 31"},
        {ONE("\"U8\"", "[1]", "[1,2]"), 2, "tensor x begins at offset 1, expected 0: a gap"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"y\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
         3, "tensor y begins at offset 1, expected 2: it overlaps x"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"y\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
         3, "tensor y begins at offset 2, expected 1: a gap follows x"},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        write_tensors(bad[i].header, bad[i].data);
        expect_file_refused(bad[i].words);
    }
}

static void test_nesting(void **state)
{
    (void)state;
    struct buffer header = {0};
    buffer_add_text(&header, "{\"x\":");
    for (int i = 0; i < 10000; i++)
        buffer_add_text(&header, "[");
    for (int i = 0; i < 10000; i++)
        buffer_add_text(&header, "]");
    buffer_add_text(&header, "}");
    write_tensors(header.data, 0);
    expect_file_refused("maximum parsing depth");
    buffer_free(&header);
}

static void test_every_cut(void **state)
{
    (void)state;
    struct buffer whole = {0};
    write_tensors(TWO, 12);
    read_file("t.safetensors", &whole);
    for (size_t size = 0; size < whole.size; size++) {
        struct tensor_file *file = NULL;
        struct error error = {0};
        write_file("t.safetensors", whole.data, size);
        assert_int_equal(tensor_file_open(&file, in_folder("t.safetensors"), &error), -1);
        assert_int_equal(error.code, ERROR_MODEL);
    }
    buffer_free(&whole);
}

/* Damaged bytes anywhere: refused or not, but never a tensor outside of the file. */
static void test_random_damage(void **state)
{
    (void)state;
    struct buffer whole = {0};
    u64 random = 1;
    write_tensors(TWO, 12);
    read_file("t.safetensors", &whole);
    for (int round = 0; round < 3000; round++) {
        struct buffer damaged = {0};
        struct tensor_file *file = NULL;
        struct error error = {0};
        buffer_add(&damaged, whole.data, whole.size);
        for (int change = 0; change < 1 + round % 3; change++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            damaged.data[(random >> 33) % whole.size] = "0123456789,:[]{}\"x\xff"[random >> 60];
        }
        write_file("t.safetensors", damaged.data, damaged.size);
        if (tensor_file_open(&file, in_folder("t.safetensors"), &error) < 0)
            assert_int_equal(error.code, ERROR_MODEL);
        for (size_t i = 0; file && i < tensor_file_count(file); i++) {
            const struct tensor *tensor = tensor_file_at(file, i);
            volatile u8 last = tensor->bytes ? ((const u8 *)tensor->data)[tensor->bytes - 1] : 0;
            (void)last;
        }
        tensor_file_close(file);
        buffer_free(&damaged);
    }
    buffer_free(&whole);
}

/* ---- the writer */

static void add_three(struct tensor_writer *writer, bool turned)
{
    static const float floats[6] = {1, -2, 3, 4, 5, 6};
    static const u16 halves[3] = {0x3c00, 0x4000, 0xc000};
    static const u8 byte = 9;
    if (turned)
        tensor_writer_add(writer, "half", DTYPE_F16, 1, (u64[]){3}, halves);
    tensor_writer_add(writer, "byte", DTYPE_U8, 0, NULL, &byte);
    tensor_writer_add(writer, "float \"quoted\" \xc3\xa9", DTYPE_F32, 2, (u64[]){2, 3}, floats);
    if (!turned)
        tensor_writer_add(writer, "half", DTYPE_F16, 1, (u64[]){3}, halves);
}

static void write_three(const char *name, bool turned)
{
    struct tensor_writer *writer = tensor_writer_create();
    struct error error = {0};
    add_three(writer, turned);
    tensor_writer_metadata(writer, "rows", "8");
    if (tensor_writer_write(writer, in_folder(name), &error) < 0)
        fail_msg("%s", error.text);
    tensor_writer_destroy(writer);
}

static void test_writes(void **state)
{
    (void)state;
    write_three("t.safetensors", false);
    struct tensor_file *file = open_file();
    assert_int_equal(tensor_file_count(file), 3);
    const struct tensor *floats = tensor_file_find(file, "float \"quoted\" \xc3\xa9");
    assert_non_null(floats);
    assert_int_equal(floats->dtype, DTYPE_F32);
    assert_int_equal(floats->shape[1], 3);
    assert_int_equal((uintptr_t)floats->data % 64, 0);
    assert_true(((const float *)floats->data)[1] == -2);
    assert_int_equal(tensor_file_find(file, "byte")->rank, 0);
    assert_int_equal(*(const u8 *)tensor_file_find(file, "byte")->data, 9);
    tensor_file_close(file);
}

static void test_writes_equal_bytes(void **state)
{
    (void)state;
    struct buffer first = {0}, second = {0};
    write_three("a.safetensors", false);
    write_three("b.safetensors", true);
    read_file("a.safetensors", &first);
    read_file("b.safetensors", &second);
    assert_int_equal(first.size, second.size);
    assert_memory_equal(first.data, second.data, first.size);
    buffer_free(&first);
    buffer_free(&second);
}

static void test_writes_holes(void **state)
{
    (void)state;
    struct tensor_writer *writer = tensor_writer_create();
    struct error error = {0};
    struct stat status;
    tensor_writer_add(writer, "hole", DTYPE_F32, 1, (u64[]){1u << 28}, NULL);
    tensor_writer_add(writer, "end", DTYPE_F16, 1, (u64[]){1u << 20}, NULL);
    assert_int_equal(tensor_writer_write(writer, in_folder("t.safetensors"), &error), 0);
    tensor_writer_destroy(writer);
    struct tensor_file *file = open_file();
    assert_int_equal(tensor_file_find(file, "hole")->bytes, 1u << 30);
    tensor_file_close(file);
    assert_int_equal(stat(in_folder("t.safetensors"), &status), 0);
    assert_true(status.st_blocks * 512 < 1 << 20);
}

static void test_writer_refuses(void **state)
{
    (void)state;
    struct error error = {0};
    struct tensor_writer *writer = tensor_writer_create();
    add_three(writer, false);
    assert_int_equal(tensor_writer_write(writer, in_folder("no/t.safetensors"), &error), -1);
    expect_error(&error, ERROR_USAGE, "No such file or directory");
    add_three(writer, false);
    assert_int_equal(tensor_writer_write(writer, in_folder("t.safetensors"), &error), -1);
    expect_error(&error, ERROR_USAGE, "name is used twice");
    assert_false(file_exists(in_folder("t.safetensors")));
    tensor_writer_destroy(writer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(test_reads),
        TEST_IN_FOLDER(test_accepts),
        TEST_IN_FOLDER(test_file_as_a_whole),
        TEST_IN_FOLDER(test_headers),
        TEST_IN_FOLDER(test_nesting),
        TEST_IN_FOLDER(test_every_cut),
        TEST_IN_FOLDER(test_random_damage),
        TEST_IN_FOLDER(test_writes),
        TEST_IN_FOLDER(test_writes_equal_bytes),
        TEST_IN_FOLDER(test_writes_holes),
        TEST_IN_FOLDER(test_writer_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
