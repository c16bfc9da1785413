"""A crawl: built, started, watched and stopped, in an order that is written here once.

`Crawl.run` runs on the caller's thread; `stop` and `snapshot` on any. No signal handler,
no global state: two crawls in one process do not meet.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from syncrawl.clock import Clock, SystemClock
from syncrawl.config.load import validate
from syncrawl.config.model import Config
from syncrawl.engine import preflight
from syncrawl.engine.crew import Crew
from syncrawl.engine.fresh import set_aside
from syncrawl.engine.guard import Guard
from syncrawl.engine.rooms import Rooms
from syncrawl.engine.snapshot import Pressure
from syncrawl.errors import EXIT_CONDITION, EXIT_OK, EXIT_SIGNAL, ConfigError, StopCondition
from syncrawl.log import Log, NullLog
from syncrawl.observe import report as reports
from syncrawl.observe.exporter import MOST_HOSTS, Exporter
from syncrawl.observe.observer import Observer

# A commit waits for more results up to this long; see CommitInbox.gather.
_LINGER = 0.03
# The same while a host has room and no URL: what is found now is fetched at once.
_LINGER_HUNGRY = 0.005
# The commit loop looks at its timers at least this often.
_HEARTBEAT = 0.5
# status.json, which is written every second, tells of no more hosts than this.
_MOST_HOSTS = 1000
# What workers get to come back in after the last commit; then they are called hung.
_JOIN = 2.0
# Seconds that stores may take to close where nobody asks to stop.
_LONGEST_CLOSE = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class _End:
    """Why the loop ends: the report's status, the exit code, and the reason in words.

    `at_once` is set where what is in flight would be waited for in vain.
    """

    status: str
    exit_code: int
    reason: str
    at_once: bool = False


class Crawl:
    """One crawl over one state directory; `run` it once.

    `config` is validated here (ConfigError). The state directory is locked while it runs.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock | None = None,
        log: Log | None = None,
        fresh: bool = False,
        reread: Callable[[], Config] | None = None,
    ) -> None:
        """`reread` gives the configuration as it is now, for `reload`; may raise ConfigError."""
        self._config = validate(config)
        self._reread = reread
        self._reload = False
        self._clock = clock or SystemClock()
        self._log = log or NullLog()
        self._fresh = fresh
        self._rooms: Rooms | None = None
        self._pressure: Pressure | None = None
        # Set once, by whoever stops the crawl first; read by the commit loop.
        self._stop: _End | None = None
        self._stopped_at: float | None = None  # clock seconds; the caller's thread's own
        self._hung: list[str] = []
        self._guard: Guard | None = None

    # -- any thread -------------------------------------------------------------------

    def stop(self, reason: str = "stopped") -> None:
        """Finish what is in flight within stop_grace, commit, end with exit code 3.

        Safe in a signal handler: sets a field and wakes the commit thread.
        """
        self._end_with(_End(reports.STOPPED, EXIT_SIGNAL, reason))

    def reload(self) -> None:
        """Read scope.deny_hosts again and drop what it names now. Safe in a signal handler."""
        self._reload = True

    def snapshot(self, *, most_hosts: int = 0) -> dict[str, Any]:
        """The state of things in the shape of report.json, with the `most_hosts` busiest hosts
        (0 = all).
        """
        pressure, guard = self._pressure, self._guard
        if pressure is None:
            return reports.empty()
        reason = guard.stalled if guard else ""
        return pressure.snapshot(reports.RUNNING, None, reason, most_hosts=most_hosts)

    def hung(self) -> list[str]:
        """Threads still busy after `run` returned; they would hold up the interpreter's exit."""
        return list(self._hung)

    # -- the caller's thread ------------------------------------------------------------

    def run(self) -> reports.Report:
        """Crawl to the end, or until something stops it; the report.

        Raises ConfigError or StopCondition for what is found before the first request.
        """
        state_dir = Path(self._config.crawl.state_dir)
        preflight.check_filesystem(state_dir)
        config, warnings = preflight.fit_workers(self._config)
        for warning in warnings:
            self._log.warning(warning)
        if self._fresh:
            for old, new in set_aside(config):
                self._log.info("set aside", old=old, new=new)
        with preflight.StateLock(state_dir):
            return self._run_locked(config, state_dir)

    def _run_locked(self, config: Config, state_dir: Path) -> reports.Report:
        # One thread that alone touches diskcache and the stores, from open to close.
        commit = ThreadPoolExecutor(1, thread_name_prefix="commit")
        try:
            rooms = Rooms(config, clock=self._clock, log=self._log, end_with=self._end_with_code)
            self._rooms = rooms
            try:
                opening = commit.submit(rooms.open)
            except RuntimeError as exc:
                raise StopCondition(f"no thread can be had to commit: {exc}") from exc
            try:
                if not self._wait(opening, "opening", float("inf")):
                    raise StopCondition("a store hangs in opening, and was left behind")
                opening.result()
                end = self._run_open(config, rooms, commit, state_dir)
            finally:
                # Behind a commit that hangs it waits its turn, and nobody waits for it.
                closing = commit.submit(rooms.close)
                left = "commit_0" in self._hung
                if not left and self._wait(closing, "closing", _LONGEST_CLOSE):
                    closing.result()
        finally:
            commit.shutdown(wait=False)
        assert self._pressure is not None
        data = self._pressure.snapshot(end.status, end.exit_code, end.reason)
        self._write_report(data, state_dir)
        return reports.Report.of(data)

    def _run_open(
        self, config: Config, rooms: Rooms, commit: ThreadPoolExecutor, state_dir: Path
    ) -> _End:
        self._pressure = Pressure(config, rooms, self._clock)
        observer = Observer(
            state_dir / reports.STATUS_FILE,
            lambda: self.snapshot(most_hosts=_MOST_HOSTS),
            clock=self._clock,
            log=self._log,
        )
        exporter = self._exporter()
        observer.start()
        crew = Crew(rooms)
        self._guard = Guard(
            config,
            rooms,
            crew,
            end_with=self._end_at_once,
            clock=self._clock,
            log=self._log,
        )
        try:
            rooms.seeds.start()
            crew.start()
            loop = commit.submit(self._commit_loop, rooms)
            return self._await(loop, rooms)
        finally:
            # The order: no new seeds, no new leases, the fetchers' last results, then an end
            # mark for each parser. What comes after the last commit is leased, thus pending.
            rooms.seeds.stop()
            rooms.scheduler.close()
            rooms.inbox.abandon()
            self._end_workers(crew)
            rooms.close_fetcher()
            self._pressure.finish()
            if exporter is not None:
                exporter.stop()
            if not observer.stop():
                self._hung.append(observer.name)

    def _wait(self, future: Future[None], what: str, longest: float) -> bool:
        """Wait for what the commit thread does at the start or the end, which may hang.

        False where it was left behind, after `longest` seconds or the grace of a stop that was
        asked for.
        """
        began = self._clock.monotonic()
        while not future.done():
            concurrent.futures.wait([future], timeout=_HEARTBEAT)
            seconds = self._clock.monotonic() - began
            grace = longest if self._stop is None else self._grace
            if seconds > grace and not future.done():
                self._hung.append("commit_0")
                self._log.error("a store hangs; left behind", what=what, seconds=round(seconds, 1))
                return False
        return True

    def _exporter(self) -> Exporter | None:
        """/metrics, listening, where the configuration wants it."""
        listen = self._config.metrics.listen
        if not listen:
            return None
        exporter = Exporter(listen, lambda: self.snapshot(most_hosts=MOST_HOSTS), log=self._log)
        exporter.start()
        return exporter

    def _await(self, loop: Future[_End], rooms: Rooms) -> _End:
        """The loop's verdict; an interrupt of this thread stops the crawl as a signal would.

        A store may hang in a write (a pipe that nobody reads): the loop can then not be
        waited for beyond the grace of a stop, and is left behind.
        """
        started = self._clock.monotonic()
        try:
            while not loop.done():
                concurrent.futures.wait([loop], timeout=_HEARTBEAT)
                assert self._guard is not None
                self._guard.look()
                if self._reload:
                    self._reload = False
                    self._read_again(rooms)
                end = self._overdue(started)
                if end is not None and not loop.done():
                    self._hung.append("commit_0")
                    self._log.error("a store hangs; left behind", reason=end.reason)
                    return end
            end = loop.result()
            # A worker may have failed while the others came to the end.
            return self._stop if self._stop is not None and self._stop.at_once else end
        except StopCondition as exc:
            self._log.error("stopped", reason=str(exc))
            return _End(reports.CONDITION, exc.exit_code, str(exc))
        except BaseException:
            self.stop("interrupted")
            concurrent.futures.wait([loop], timeout=self._grace)
            if not loop.done():
                self._hung.append("commit_0")
            raise

    @property
    def _grace(self) -> float:
        """Seconds that the commit thread gets to come to an end once a stop was asked for."""
        return self._config.crawl.stop_grace + _JOIN

    def _overdue(self, started: float) -> _End | None:
        """The end that the commit loop should have come to by now."""
        now = self._clock.monotonic()
        limit = self._config.crawl.max_seconds
        grace = self._grace
        if self._stop is not None:
            if self._stopped_at is None:
                self._stopped_at = now
            return self._stop if now - self._stopped_at > grace else None
        if limit and now - started > limit + grace:
            return _End(reports.LIMIT, EXIT_OK, f"crawl.max_seconds = {limit:g} are over")
        return None

    def _read_again(self, rooms: Rooms) -> None:
        """Have scope.deny_hosts, and that alone, be what the configuration says now."""
        if self._reread is None:
            self._log.warning("asked to reload, but there is no configuration file")
            return
        try:
            globs = validate(self._reread()).scope.deny_hosts
        except ConfigError as exc:
            self._log.error("the configuration cannot be read again; nothing changes", why=str(exc))
            return
        rooms.scope.deny_hosts_changed(globs)
        rooms.committer.deny_again()
        rooms.inbox.wake()
        self._log.warning("scope.deny_hosts read again; no other key is", deny_hosts=list(globs))

    def _end_workers(self, crew: Crew) -> None:
        busy = crew.end(_JOIN)
        assert self._guard is not None
        self._guard.look_for_failures()
        if busy:
            self._hung.extend(busy)
            self._log.warning("workers still busy at the end", threads=busy)

    def _write_report(self, data: dict[str, Any], state_dir: Path) -> None:
        for name in (reports.STATUS_FILE, reports.REPORT_FILE):
            try:
                reports.write_json(state_dir / name, data)
            except OSError as exc:
                self._log.error("report not written", file=name, error=str(exc))

    # -- the commit thread --------------------------------------------------------------

    def _commit_loop(self, rooms: Rooms) -> _End:
        """Commit until an end is found, then until what is in flight is in or grace is over."""
        started = self._clock.monotonic()
        limit = self._config.crawl.max_seconds
        end: _End | None = None
        until = float("inf")
        committer, scheduler, inbox = rooms.committer, rooms.scheduler, rooms.inbox
        while True:
            now = self._clock.monotonic()
            if end is None:
                end = self._stop or self._natural_end(rooms, now - started, limit)
                if end is not None:
                    scheduler.close()
                    until = now + (0.0 if end.at_once else self._config.crawl.stop_grace)
            if end is not None and (not scheduler.leased or now >= until):
                committer.step(inbox.gather(0.0, 0.0))
                committer.publish(every=0.0)
                return end
            if committer.has_ends or (not rooms.seeds.ended and rooms.seeds.ready):
                timeout = 0.0
            else:
                timeout = self._patience(rooms, now - started, limit)
            linger = _LINGER_HUNGRY if scheduler.hungry() else _LINGER
            full = scheduler.saturated or inbox.full()
            committer.step(inbox.gather(timeout, linger), full=full)
            rooms.adjust()

    def _patience(self, rooms: Rooms, elapsed: float, limit: float) -> float:
        """Seconds the loop may wait for an item."""
        waits = [_HEARTBEAT]
        due = rooms.committer.next_due()
        if due is not None:
            waits.append(due - self._clock.wall())
        if limit:
            waits.append(limit - elapsed)
        return max(0.0, min(waits))

    def _natural_end(self, rooms: Rooms, elapsed: float, limit: float) -> _End | None:
        if rooms.committer.nothing_left:
            if closed := rooms.route.closed:
                reason = f"nothing came through: {closed}; retry-failed takes the URLs back"
                return _End(reports.CONDITION, EXIT_CONDITION, reason)
            return _End(reports.FINISHED, EXIT_OK, "nothing is pending")
        if not rooms.scheduler.pages_left:
            pages = self._config.crawl.max_pages
            return _End(reports.LIMIT, EXIT_OK, f"crawl.max_pages = {pages} pages are committed")
        if limit and elapsed >= limit:
            return _End(reports.LIMIT, EXIT_OK, f"crawl.max_seconds = {limit:g} are over")
        return self._only_waits(rooms)

    def _only_waits(self, rooms: Rooms) -> _End | None:
        """The end of a run that could only wait longer than max_wait."""
        longest = self._config.crawl.max_wait
        if not longest or rooms.scheduler.unsettled or not rooms.seeds.ended:
            return None
        if rooms.scheduler.has_ready or rooms.committer.has_ends:
            return None
        waits = []
        due = rooms.committer.next_due()
        if due is not None:
            waits.append(due - self._clock.wall())
        event = rooms.scheduler.waits_until()
        if event is not None:
            waits.append(event - self._clock.monotonic())
        if not waits or min(waits) <= longest:
            return None
        return _End(
            reports.CONDITION,
            EXIT_CONDITION,
            f"the next URL is due in {min(waits):.0f} s, crawl.max_wait is {longest:g}",
        )

    def _end_with_code(self, exit_code: int, reason: str) -> None:
        self._end_with(_End(reports.CONDITION, exit_code, reason))

    def _end_at_once(self, exit_code: int, reason: str) -> None:
        status = reports.CONDITION if exit_code == EXIT_CONDITION else reports.FAILED
        self._end_with(_End(status, exit_code, reason, at_once=True))

    def _end_with(self, end: _End) -> None:
        if self._stop is None:
            self._stop = end
        rooms = self._rooms
        if rooms is not None:
            rooms.inbox.poke()

    def __repr__(self) -> str:
        state = "not started" if self._pressure is None else repr(self._rooms)
        return f"<Crawl of {self._config.crawl.state_dir}: {state}>"
