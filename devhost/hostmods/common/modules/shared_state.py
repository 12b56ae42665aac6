"""All hosts: what runs now, and the wishes of the person at the page: interrupt, skip, Reload UI."""

import threading


class State:
    skipped = interrupted = stopping_generation = False
    job = ""
    job_no = job_count = sampling_step = sampling_steps = 0

    def __init__(self):
        self._command = None
        self._signal = threading.Condition()

    def begin(self, job="(unknown)"):
        self.skipped = self.interrupted = self.stopping_generation = False
        self.job, self.job_no, self.job_count, self.sampling_step, self.sampling_steps = job, 0, -1, 0, 0

    def end(self):
        self.job, self.job_count = "", 0

    def nextjob(self):
        self.job_no += 1
        self.sampling_step = 0

    def interrupt(self):
        self.interrupted = True

    def skip(self):
        self.skipped = True

    def request_restart(self):
        """Reload UI."""
        self.interrupt()
        self.server_command = "restart"

    @property
    def server_command(self):
        return self._command

    @server_command.setter
    def server_command(self, command):
        with self._signal:
            self._command = command
            self._signal.notify_all()

    def wait_for_server_command(self, timeout=None):
        with self._signal:
            if self._command is None:
                self._signal.wait(timeout)
            command, self._command = self._command, None
        return command
