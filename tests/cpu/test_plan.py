"""Plans on one and on several threads: order, reports, interrupts, forks, the end of a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from ggmlpy.backends.cpu import runner
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.cores import default_n_threads
from ggmlpy.backends.cpu.jit import Jit
from ggmlpy.backends.cpu.kernel import RECORD_BYTES, TENSOR, kernel, record_dtype
from ggmlpy.backends.cpu.plan import Failure, Operand, Plan, make_record
from ggmlpy.backends.cpu.threads import ThreadPool, thread_pool
from ggmlpy.errors import BackendError, KernelError
from tests.cpu.conftest import jit_for
from tests.cpu.plan_kernels import check_limit, count


class Counting:
    """A plan of `n_nodes` nodes in which every thread adds once per node to one counter."""

    def __init__(self, jit: Jit, n_nodes: int, max_threads: int = 8) -> None:
        self.counter = np.zeros(1, np.int64)
        self.seen = np.full((n_nodes, max_threads), -1)
        records = []
        for i in range(n_nodes):
            params = {"counter": self.counter.ctypes.data, "seen": self.seen[i].ctypes.data}
            records.append(make_record(count, [], params | {"times": 1}))
        self.plan = Plan(jit, [count] * n_nodes, records)

    def run(self, n_threads: int) -> None:
        """Runs and checks that no thread was ahead of another by more than the node at hand."""
        self.counter[0] = 0
        self.seen[:] = -1
        assert self.plan.run(n_threads) is None
        assert self.counter[0] == len(self.plan) * n_threads
        for i, found in enumerate(self.seen):
            assert (found[:n_threads] >= i * n_threads).all()
            assert (found[:n_threads] < (i + 1) * n_threads).all()
            assert (found[n_threads:] == -1).all()


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5])
def test_every_thread_meets_the_others_after_every_node(jit: Jit, n_threads: int) -> None:
    counting = Counting(jit, 20)
    for _ in range(5):
        counting.run(n_threads)


def test_thread_counts_may_change_from_run_to_run() -> None:
    counting = Counting(jit_for("generic"), 3)
    rng = np.random.default_rng(0)
    for n_threads in rng.integers(1, 7, 60):
        counting.run(int(n_threads))


def wait_until_asleep(pool: ThreadPool, n_threads: int) -> None:
    """Until no thread below `n_threads` spins any more."""
    slots = [runner.SLOTS + ith * runner.SLOT_BYTES for ith in range(1, n_threads)]
    while any(pool._word(slot + runner.STATE)[0] != runner.PARKED for slot in slots):
        os.sched_yield()


def test_python_threads_take_turns() -> None:
    countings = [Counting(jit_for("generic"), 5) for _ in range(4)]
    errors: list[BaseException] = []

    def work(counting: Counting) -> None:
        try:
            for _ in range(25):
                counting.run(2)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(counting,)) for counting in countings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_one_thread_starts_no_other() -> None:
    code = """
        import threading
        from tests.cpu.test_plan import Counting
        from ggmlpy.backends.cpu.jit import Jit
        Counting(Jit("generic"), 3).run(1)
        print(threading.active_count())
    """
    assert run_python(code).split() == ["1"]


def test_an_empty_plan_does_nothing() -> None:
    assert Plan(jit_for("generic"), [], []).run(2) is None


def test_thread_counts_out_of_range() -> None:
    counting = Counting(jit_for("generic"), 1)
    for n_threads in (0, -1, 513):
        with pytest.raises(BackendError, match=f"n_threads is {n_threads}, must be 1 to 512"):
            counting.plan.run(n_threads)
    for n_threads in (-1, 513):
        with pytest.raises(BackendError, match=f"n_threads is {n_threads}, must be 1 to 512"):
            CpuBackend(n_threads)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_report_names_the_node_and_the_value(jit: Jit, n_threads: int) -> None:
    ids = np.array([0, 3, 7, 2, 4], np.int64)
    records = [
        make_record(check_limit, [], {"ids": ids.ctypes.data, "n": 5, "limit": limit})
        for limit in (8, 6, 5)
    ]
    plan = Plan(jit, [check_limit] * 3, records)
    assert plan.run(n_threads) == Failure(node=1, value=7)  # the first node stays, 2 fails too
    ids[2] = 1
    assert plan.run(n_threads) is None
    ids[0] = 1 << 40
    assert plan.run(n_threads) == Failure(node=0, value=1 << 40)


def test_records_can_be_changed_between_runs() -> None:
    ids = np.array([1, 2, 3], np.int64)
    record = make_record(check_limit, [], {"ids": ids.ctypes.data, "n": 3, "limit": 3})
    plan = Plan(jit_for("generic"), [check_limit], [record])
    assert plan.run() == Failure(0, 3)
    plan.record(0)["limit"] = 4
    assert plan.run() is None


def test_records_are_checked_when_they_are_written() -> None:
    operand = Operand(1, (1, 1, 1, 1), (4, 4, 4, 4))
    with pytest.raises(KernelError, match="check_limit takes 0 operands"):
        make_record(check_limit, [operand], {})
    with pytest.raises(KernelError, match="check_limit needs a value for its field 'limit'"):
        make_record(check_limit, [], {"ids": 0, "n": 0})


def test_a_record_has_a_largest_size() -> None:
    fits = np.dtype([("bytes", "u1", (RECORD_BYTES - 24,))])
    assert record_dtype(fits).itemsize == RECORD_BYTES
    too_large = np.dtype([(f"t{i}", TENSOR) for i in range(14)])
    with pytest.raises(TypeError, match="a record is 960 bytes, these fields need 1032"):
        record_dtype(too_large)


def test_two_kernels_of_one_name_are_refused() -> None:
    declare = kernel("test_twice", ("f32",), args=np.dtype([("n", "i8")]), name="twice")

    def function(p: object, ith: int, nth: int) -> None: ...

    declare(function)
    with pytest.raises(TypeError, match=r"declares twice twice: pass name="):
        declare(function)


def test_default_threads_are_the_cores_of_this_process() -> None:
    assert 1 <= default_n_threads() <= (os.cpu_count() or 1)
    if not hasattr(os, "sched_setaffinity"):
        return
    code = """
        import os
        from ggmlpy.backends.cpu.cores import default_n_threads
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        print(default_n_threads())
    """
    assert run_python(code).split() == ["1"]


def run_python(code: str) -> str:
    """What a fresh interpreter prints; it must end by itself, quietly."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("wait", ["", "wait_until_asleep(thread_pool(), 4)"])
def test_the_interpreter_ends_with_threads_awake_or_asleep(wait: str) -> None:
    code = f"""
        from tests.cpu.test_plan import Counting, thread_pool, wait_until_asleep
        from ggmlpy.backends.cpu.jit import Jit
        Counting(Jit("generic"), 3).run(4)
        {wait}
        print("done")
    """
    assert run_python(code) == "done\n"


def test_the_interpreter_ends_while_a_daemon_thread_runs_plans() -> None:
    code = """
        import threading
        from tests.cpu.test_plan import Counting
        from ggmlpy.backends.cpu.jit import Jit
        from ggmlpy.errors import BackendError
        counting, has_run = Counting(Jit("generic"), 3), threading.Event()
        def work():
            try:
                while True:
                    counting.run(3)
                    has_run.set()
            except BackendError:
                pass
        threading.Thread(target=work, daemon=True).start()
        has_run.wait()
        print("done")
    """
    assert run_python(code) == "done\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_makes_threads_of_its_own() -> None:
    code = """
        import os, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        from tests.cpu.test_plan import Counting
        from ggmlpy.backends.cpu.jit import Jit
        counting = Counting(Jit("generic"), 3)
        counting.run(3)
        child = os.fork()
        counting.run(3)
        if child == 0:
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run_python(code) == "7\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_forked_in_the_middle_of_a_plan_counts_from_zero() -> None:
    """Attention shared out in parts: who ends last merges, which an old count would prevent."""
    code = """
        import os, sys, warnings
        import numpy as np
        warnings.simplefilter("ignore", DeprecationWarning)
        from ggmlpy import ops
        from ggmlpy.backends.cpu.backend import CpuBackend
        from ggmlpy.sched.executable import Executable
        from ggmlpy.graph.graph import Graph
        from ggmlpy.graph.tensor import from_numpy
        rng = np.random.default_rng(0)
        q, k, v = (from_numpy(rng.standard_normal((1, n, 16), np.float32)) for n in (1, 2000, 2000))
        y = ops.flash_attn_ext(q, k, v, None, 0.25, 0.0, 0.0)
        backend = CpuBackend(2)
        executable = Executable(Graph(y), [backend])
        executable.run()
        want = executable.raw(y).tobytes()
        backend._pool.take("counters", 8).data[0] = 100  # more than there are parts
        child = os.fork()
        if child == 0:
            executable.array(y)[...] = 0
            executable.run()
            os._exit(7 if executable.raw(y).tobytes() == want else 8)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run_python(code) == "7\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_forked_while_another_thread_loads_code_can_load_code() -> None:
    """The thread that held the lock is not there."""
    code = """
        import os, signal, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        from ggmlpy.backends.cpu import runner
        from ggmlpy.backends.cpu.isa import select
        from ggmlpy.backends.cpu.jit import Jit, shared_jit
        Jit(select()).address(runner.read_ticks)  # compiled, if it was not
        jit = shared_jit(select())
        known = jit.address(runner.park)
        with jit._lock:
            child = os.fork()
            if child == 0:
                signal.alarm(250)  # the end of a child that hangs, and has no other
                same = jit.address(runner.park) == known
                os._exit(7 if same and jit.address(runner.read_ticks) else 8)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run_python(code) == "7\n"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer signals on this system")
def test_interrupts_leave_the_pool_usable() -> None:
    """A signal handler that raises hits `run` at many different lines."""

    class Interrupted(Exception):
        pass

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    counting = Counting(jit_for("generic"), 4)
    counting.run(3)
    n_interrupts = 0
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        for i in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 20e-6 + 1e-6 * i)
                while True:
                    counting.plan.run(3)
            except Interrupted:
                n_interrupts += 1
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert n_interrupts == 300
    counting.run(3)


def test_an_interrupt_while_threads_start_leaves_one_of_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second thread of one number would never sleep again."""

    class Interrupted(Exception):
        pass

    start = threading.Thread.start

    def start_interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise Interrupted

    pool, counting = ThreadPool(), Counting(jit_for("generic"), 3)
    memory, before = int(counting.plan._memory.ctypes.data), threading.active_count()
    monkeypatch.setattr(threading.Thread, "start", start_interrupted)
    for _ in range(2):  # each starts one of two
        with pytest.raises(Interrupted):
            pool.run(memory, 3, 3)
    monkeypatch.undo()
    pool.run(memory, 3, 3)
    assert counting.counter[0] == 9
    assert threading.active_count() == before + 2
    wait_until_asleep(pool, 3)
    pool.stop()


def test_a_thread_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool, counting = ThreadPool(), Counting(jit_for("generic"), 3)
    memory = int(counting.plan._memory.ctypes.data)
    monkeypatch.setattr(threading.Thread, "start", no_start)
    with pytest.raises(BackendError, match="thread 1 of 2: can't start new thread"):
        pool.run(memory, 3, 2)
    monkeypatch.undo()
    pool.run(memory, 3, 2)
    assert counting.counter[0] == 6
    pool.stop()


def test_a_plan_does_not_wait_for_threads_that_do_not_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every share of work is done, by whoever is there: here by the calling thread alone."""
    pool = ThreadPool()
    monkeypatch.setattr(pool, "_start_threads", lambda n_threads: None)
    counting = Counting(jit_for("generic"), 20)
    pool.run(int(counting.plan._memory.ctypes.data), 20, 4)
    assert counting.counter[0] == 80
    assert (counting.seen[:, :4] == np.arange(80).reshape(20, 4)).all()


def test_a_stopped_pool_says_so() -> None:
    pool = ThreadPool()
    counting = Counting(jit_for("generic"), 1)
    memory = int(counting.plan._memory.ctypes.data)
    pool.run(memory, 1, 2)
    pool.stop()
    with pytest.raises(BackendError, match="shutting down"):
        pool.run(memory, 1, 2)
    pool.run(memory, 1, 1)
    assert counting.counter[0] == 3
    assert thread_pool() is not pool
