"""A cell that is interrupted in a real kernel: one line, and the kernel goes on."""

import pytest

manager = pytest.importorskip("jupyter_client.manager")

CELLS = (
    "from rlbook.viz.style import one_line_interrupts; one_line_interrupts(); import time",
    """def deep(n):
    kept.append(n)
    return deep(n - 1) if n else [print("going", flush=True), time.sleep(60)]

kept = []
deep(30)
""",
    "print(len(kept))",
)


@pytest.fixture
def kernel():
    made, client = manager.start_new_kernel(kernel_name="python3")
    yield made, client
    client.stop_channels()
    made.shutdown_kernel(now=True)


def run(client, code: str, seen=lambda message: None) -> list[dict]:
    """What the kernel sends for a cell until it is idle again."""
    said: list[dict] = []
    asked = client.execute(code)
    while not said or said[-1]["content"].get("execution_state") != "idle":
        message = client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") == asked:
            said.append(message)
            seen(message)
    return said


def test_an_interrupted_cell_ends_in_one_line(kernel):
    made, client = kernel

    def stop(message):
        if message["content"].get("text", "").startswith("going"):
            made.interrupt_kernel()

    run(client, CELLS[0])
    (error,) = [m["content"] for m in run(client, CELLS[1], stop) if m["msg_type"] == "error"]
    assert error["ename"] == "KeyboardInterrupt"
    assert error["traceback"] == [
        "Interrupted in line 6, 'deep(30)'. What is computed so far is kept."
    ]
    printed = [m["content"]["text"] for m in run(client, CELLS[2]) if m["msg_type"] == "stream"]
    assert printed == ["31\n"]
    failed = [m for m in run(client, "1 / 0") if m["msg_type"] == "error"]
    assert len(failed[0]["content"]["traceback"]) > 1  # other errors keep their traceback
