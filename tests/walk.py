"""How many files of `src/` a way through the core visits, counted by a debugger: docs/internals/architecture.md has the figures.

A visit of a file is a stay: consecutive lines of one file that are executed, from the line that comes from another file until the
line that leaves for one. What is executed in Rust's own library between two lines of one file does not end a stay. Nothing may be
optimised, or lines are executed in an order that nobody wrote:

    cargo test -p rationd --test all --no-run --config 'profile.dev.opt-level=0' --config 'profile.dev.package.rationd.opt-level=0'
    gdb -q -batch -x tests/walk.py --args target/debug/deps/all-… --test-threads=1 --exact \
        shard::a_bucket_of_which_much_is_left_is_left_alone_until_its_account_closes | grep '^WALK'
"""

import os
import re

import gdb

ROOT = os.getcwd() + "/src/"
WAYS = ["fn handle_outcome", "fn handle_timeout"]

# The files that the page lists, of which each decides something.
LISTED = ["core/shard.rs"] + [
    f"core/leased/{name}.rs"
    for name in "outcomes advance keeping key peers outage intent timers account".split()
]


def first_line(path, function):
    """The line with which the body of a function of that file begins."""
    lines = open(path).read().split("\n")
    start = next(number for number, line in enumerate(lines) if re.search(rf"pub {function}\(", line))
    return next(number for number in range(start, len(lines)) if lines[number].endswith("{")) + 2


def walk():
    """The stays of one call, from its first line to its return."""
    stack = int(gdb.parse_and_eval("$sp"))
    stays = []
    while int(gdb.parse_and_eval("$sp")) <= stack:
        place = gdb.selected_frame().find_sal().symtab
        name = place.fullname() if place else ""
        if name.startswith(ROOT) and stays[-1:] != [name[len(ROOT):]]:
            stays.append(name[len(ROOT):])
        gdb.execute("step", to_string=True)
    return stays


def without_repeats(names):
    return [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]


gdb.execute("set pagination off")
gdb.execute("set confirm off")
for way in WAYS:
    gdb.Breakpoint(f"src/core/shard.rs:{first_line(ROOT + 'core/shard.rs', way)}")
gdb.execute("run", to_string=True)
gdb.execute("set scheduler-locking step")
while gdb.selected_inferior().pid:
    way = re.sub(r"::h[0-9a-f]+$", "", gdb.selected_frame().name())
    stays = walk()
    listed = without_repeats([name for name in stays if name in LISTED])
    print(f"WALK {way}: {len(set(stays))} files, {len(stays)} stays; of those listed {len(set(listed))} files, {len(listed)} stays")
    gdb.execute("continue", to_string=True)
