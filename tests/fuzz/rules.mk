# The program's calls of these functions pass through watch.h.
FUZZ_WATCHED = jit_request device_alloc device_free device_alloc_pinned device_free_pinned \
               device_launch device_fill device_copy device_graph_begin device_graph_end \
               device_graph_launch device_graph_destroy
$(BUILD)/tests/fuzz/test_kernels: LDFLAGS += $(FUZZ_WATCHED:%=-Wl,--wrap=%)
