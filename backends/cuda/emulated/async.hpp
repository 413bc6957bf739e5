// Part of emulator.cpp: asynchronous copies, which are made when a thread waits for them.
#pragma once

EXPORTED void emulated_async_copy(void* shared, const void* global, int n_bytes, int n_valid) {
    const void* pc = CALLED_FROM;
    if ((uintptr_t)shared % n_bytes || (n_valid && (uintptr_t)global % n_bytes)) {
        fail(pc, "an asynchronous copy of %d bytes to %p from %p, which is not aligned", n_bytes,
             shared, global);
    }
    if (n_valid) check_read(pc, global, n_valid);
    check_write(pc, shared, n_bytes);
    set_state(shared, n_bytes, BEING_COPIED);
    self->copies.push_back({shared, global, n_bytes, n_valid, self->n_groups});
}

EXPORTED void emulated_async_commit() { ++self->n_groups; }

EXPORTED void emulated_async_wait(int n_groups) {
    const void* pc = CALLED_FROM;
    Fiber* me = self;
    size_t n = 0;
    for (; n < me->copies.size(); ++n) {
        const AsyncCopy& copy = me->copies[n];
        if (copy.group + n_groups >= me->n_groups) break;
        check_write(pc, copy.shared, copy.n_bytes);
        memset(copy.shared, 0, copy.n_bytes);
        memcpy(copy.shared, copy.global, copy.n_valid);
    }
    me->copies.erase(me->copies.begin(), me->copies.begin() + n);
}
