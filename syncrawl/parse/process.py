"""A child process and the pipes to it: frames with a deadline, what it says, its end.

Runs on parse threads, each instance on one. Imports the clock, msgspec and `frames`.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import msgspec

from syncrawl.clock import Clock
from syncrawl.parse import frames

# Seconds that a child may take to end by itself, and a killed one to be gone.
LEAVE_SECONDS = 1.0
# Seconds that a hung child may take to say where it hangs, and of silence after that.
_CONFESS = 0.3
_SILENCE = 0.05
# Bytes kept of what a child writes to standard error; reads for what is left at its end.
_MOST_HEARD = 8_192
_MOST_READS = 128
_CHUNK = 1 << 16


class Late(Exception):
    """The time is over."""


class Gone(Exception):
    """The other end of the pipes is closed."""


class Nonsense(Exception):
    """What came is no frame."""


class Child:
    """One process and the pipes to it; `stage` is the byte that it and we can both write."""

    def __init__(self, command: Sequence[str], clock: Clock) -> None:
        self._clock = clock
        self.ready = False
        self.heard = bytearray()
        board = _shared_byte()
        try:
            self._board = mmap.mmap(board, 1)
            self.process = subprocess.Popen(
                (*command, str(board)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=(board,),
                env=_environment(),
                # A Ctrl-C is for the crawl, and a group of its own can be killed as a whole.
                start_new_session=True,
            )
        finally:
            os.close(board)
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._pipes = (process.stdin, process.stdout, process.stderr)
        self._stdin, self._stdout, self._stderr = (pipe.fileno() for pipe in self._pipes)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._stdout, select.POLLIN)
        self._writable.register(self._stdin, select.POLLOUT)
        for fd in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(fd, False)
        for poll in (self._readable, self._writable):
            # A child that finds this pipe full would wait for ever.
            poll.register(self._stderr, select.POLLIN)

    @property
    def stage(self) -> int:
        return self._board[0]

    @stage.setter
    def stage(self, stage: int) -> None:
        self._board[0] = stage

    def send(self, head: bytes, body: bytes, until: float) -> None:
        """Write both. Raises Late or Gone."""
        sent = self._write((head, body))
        for part in (head, body):
            if sent >= len(part):
                sent -= len(part)
                continue
            left = memoryview(part)[sent:]
            sent = 0
            while left:
                self._wait(self._writable, until)
                left = left[self._write((left,)) :]

    def receive(self, until: float) -> frames.Reply:
        """One message. Raises Late, Gone or Nonsense."""
        data = bytearray()
        header = frames.REPLY.size
        end = header
        while len(data) < end:
            self._wait(self._readable, until)
            try:
                chunk = os.read(self._stdout, max(_CHUNK, end - len(data)))
            except BlockingIOError:
                continue
            if not chunk:
                raise Gone
            data += chunk
            if end == header and len(data) >= header:
                (size,) = frames.REPLY.unpack_from(data)
                if size > frames.MOST_REPLY:
                    raise Nonsense(f"a message of {size} bytes")
                end += size
        try:
            # All that has come: nothing may follow an answer that was not asked for yet.
            return frames.decode_reply(memoryview(data)[header:])
        except msgspec.DecodeError as exc:
            raise Nonsense(str(exc)) from exc

    def confess(self) -> None:
        """Ask a process that hangs for its stack, which is then among what is heard."""
        try:
            # Popen's own send_signal() would reap it, and then its group could not be killed.
            os.kill(self.process.pid, signal.SIGUSR1)
        except OSError:
            return
        poll = select.poll()
        poll.register(self._stderr, select.POLLIN)
        patience = _CONFESS
        # Bounded, since it may as well be hanging in what it prints.
        for _ in range(_MOST_READS):
            if not poll.poll(patience * 1000) or not self._hear():
                return
            patience = _SILENCE

    def last_words(self) -> str:
        """What was heard since this was last asked."""
        said = self.heard.decode("utf-8", "replace").strip()
        self.heard.clear()
        return said

    def how(self) -> str:
        """How it ended, in words."""
        code = self.process.returncode
        if code is None:
            return "killed, and not gone"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def leave(self) -> None:
        """End it by the end of its input, or by force where that does not do."""
        if self.ready:
            self._pipes[0].close()
            try:
                self.receive(self._clock.monotonic() + LEAVE_SECONDS)
            except (Gone, Late, Nonsense):
                pass
        self.kill()

    def kill(self) -> None:
        """End it and what it has started, and give everything back."""
        try:
            # Before it is waited for: until then its number is nobody else's.
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass  # nobody is left
        try:
            self.process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            pass  # in the kernel's hands, a dead network filesystem's perhaps
        for _ in range(_MOST_READS):
            if not self._hear():
                break
        for pipe in self._pipes:
            pipe.close()
        # `stage` is still asked for.
        stage = self.stage
        self._board.close()
        self._board = mmap.mmap(-1, 1)
        self.stage = stage

    def _wait(self, poll: select.poll, until: float) -> None:
        """Until the pipe that `poll` is about can be used; hears standard error meanwhile."""
        while True:
            left = until - self._clock.monotonic()
            if left <= 0:
                raise Late
            ready = False
            for fd, _ in poll.poll(left * 1000):
                if fd != self._stderr:
                    ready = True
                elif not self._hear():
                    self._readable.unregister(fd)
                    self._writable.unregister(fd)
            if ready:
                return

    def _write(self, parts: tuple[bytes | memoryview, ...]) -> int:
        try:
            return os.writev(self._stdin, parts)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            raise Gone from None

    def _hear(self) -> bool:
        """Read standard error; False where nothing more can come, or is there now."""
        try:
            said = os.read(self._stderr, _CHUNK)
        except BlockingIOError:
            return False
        self.heard += said
        del self.heard[:-_MOST_HEARD]
        return bool(said)

    def __repr__(self) -> str:
        return f"<process {self.process.pid}, {'ready' if self.ready else 'starting'}>"


def _shared_byte() -> int:
    """A descriptor of one byte of memory."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("parse-child")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, 1)
    return fd


def _environment() -> dict[str, str]:
    """Ours, with the place of every module that we could import."""
    places = [place or os.getcwd() for place in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
