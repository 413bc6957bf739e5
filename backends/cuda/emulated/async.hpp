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
    Fiber& me = *self;
    if (me.n_copies == me.max_copies) {
        me.max_copies = 2 * me.max_copies + 16;
        void* more = realloc(me.copies, me.max_copies * sizeof *me.copies);
        if (!more) fail(pc, "no memory for asynchronous copies");
        me.copies = (AsyncCopy*)more;
    }
    me.copies[me.n_copies++] = {shared, global, n_bytes, n_valid, me.n_groups};
}

EXPORTED void emulated_async_commit() { ++self->n_groups; }

EXPORTED void emulated_async_wait(int n_groups) {
    const void* pc = CALLED_FROM;
    Fiber* me = self;
    u32 n = 0;
    for (; n < me->n_copies; ++n) {
        const AsyncCopy& copy = me->copies[n];
        if (copy.group + n_groups >= me->n_groups) break;
        check_write(pc, copy.shared, copy.n_bytes);
        memset(copy.shared, 0, copy.n_bytes);
        memcpy(copy.shared, copy.global, copy.n_valid);
    }
    me->n_copies -= n;
    memmove(me->copies, me->copies + n, me->n_copies * sizeof *me->copies);
}
