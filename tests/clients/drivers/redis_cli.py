"""redis-cli on a terminal, as tests/clients.rs drives it: python redis_cli.py SOCKET [OPTION].

Lines of stdin in pairs: what a person types, and what must then come to stand on the screen. What ends with a
space is not sent off: its hint is what must come."""

import fcntl
import os
import pty
import re
import select
import struct
import sys
import tempfile
import termios
import time

PATIENCE = 20
# Before the prompt stands, redis-cli throws away what was typed.
PROMPT = f"redis {sys.argv[1]}> "


def terminal(socket, *options):
    """Runs redis-cli before a wide screen, whose file it returns."""
    child, screen = pty.fork()
    if child == 0:
        # Without a size redis-cli would ask the terminal for it.
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 250, 0, 0))
        os.environ.update(TERM="xterm", HOME=tempfile.gettempdir(), REDISCLI_HISTFILE=os.devnull)
        os.execvp("redis-cli", ["redis-cli", "-s", socket, *options])
    return screen


class Screen:
    """What is shown, as far as it was not looked for yet."""

    def __init__(self, file):
        self.file, self.shown, self.pending = file, "", ""

    def wait_for(self, wanted):
        end = time.monotonic() + PATIENCE
        while wanted not in self.shown:
            ready, _, _ = select.select([self.file], [], [], max(0, end - time.monotonic()))
            if not ready:
                sys.exit(f"{wanted!r} is not on the screen:\n{self.shown}")
            text = self.pending + os.read(self.file, 65536).decode()
            # Colours and moves of the cursor are left out, one whose end has yet to come as well.
            begun = re.search(r"\x1b(\[[0-9;]*)?$", text)
            self.pending = begun.group() if begun else ""
            self.shown += re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text.removesuffix(self.pending))
        self.shown = self.shown.split(wanted, 1)[1]

    def type(self, text):
        os.write(self.file, text.encode())


lines = sys.stdin.read().splitlines()
screen = Screen(terminal(*sys.argv[1:]))
screen.wait_for(PROMPT)
for number, (typed, wanted) in enumerate(zip(lines[::2], lines[1::2], strict=True)):
    is_hint = typed.endswith(" ")
    screen.type(typed if is_hint else typed + "\r")
    screen.wait_for(wanted)
    if not is_hint:
        screen.wait_for(PROMPT)
    # Control-U drops a line that was not sent off. The answer is the end of what belongs to this step.
    screen.type(f"\x15ECHO end-{number}\r")
    screen.wait_for(f'\n"end-{number}"')
    screen.wait_for(PROMPT)
    print("seen", wanted)
screen.type("quit\r")
