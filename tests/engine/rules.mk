# test_prefill stands between the engine and the device: it looks on, and drops or fails one call.
$(BUILD)/tests/engine/test_prefill: LDFLAGS += \
    $(foreach f,device_launch device_event_wait device_sync device_stream_destroy,-Wl,--wrap=$(f))
