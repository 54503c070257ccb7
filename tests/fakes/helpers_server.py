"""A server process for tests, which can be killed, stopped and told to misbehave."""

import signal
import subprocess
import sys
from pathlib import Path

from patience import patience

SCRIPT = Path(__file__).with_name("faulty_server.py")


class ServerProcess:
    """Starts the server and waits for its port; `port` 0 takes any free one."""

    def __init__(self, folder, corpus="atlas-mini", port=0):
        self.mode_file = folder / "mode"
        self.mode("ok")
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(corpus), str(port), str(self.mode_file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        if "http://" not in line:
            raise RuntimeError(f"the server did not start: {line}{self.process.communicate()[1]}")
        self.url = line[line.index("http://") :].split(";")[0]
        self.port = int(self.url.rsplit(":", 1)[1])

    def mode(self, name):
        self.mode_file.write_text(name)

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self._reap()

    def end(self):
        """Asks it to stop, and waits until it has."""
        self.process.terminate()
        self.process.wait(patience(20.0))
        self._reap()

    def _reap(self):
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()
