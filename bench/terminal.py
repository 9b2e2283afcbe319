"""Draws a run of a program in a terminal as an SVG: `python3 bench/terminal.py OUT.svg COMMAND…`.

Needs `pyte` (PyPI), a terminal emulator. The picture has the last lines of the screen, in colour.
"""

import fcntl
import os
import pty
import struct
import sys
import termios
from xml.sax.saxutils import escape

import pyte

COLUMNS, LINES, SHOWN = 100, 200, 46
CHAR, LINE, PAD = 8.4, 19, 18
COLOURS = {
    "default": "#d8dee9", "black": "#4c566a", "red": "#e06c75", "green": "#98c379",
    "brown": "#e5c07b", "blue": "#61afef", "magenta": "#c678dd", "cyan": "#56b6c2",
    "white": "#eceff4",
}  # fmt: skip


def screen_of(command):
    """The screen after the command, as lines of (text, colour, bold)."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the program has ended
            break
        if not data:
            break
        stream.feed(data)
    if os.waitpid(pid, 0)[1] != 0:
        sys.exit("terminal.py: the command failed:\n" + "\n".join(screen.display).rstrip())
    rows = []
    for y in range(LINES):
        spans = []
        for x in range(COLUMNS):
            cell = screen.buffer[y][x]
            style = (cell.fg, cell.bold)
            if spans and spans[-1][1] == style:
                spans[-1][0] += cell.data
            else:
                spans.append([cell.data, style])
        rows.append(spans)
    while rows and not "".join(text for text, _ in rows[-1]).strip():
        rows.pop()
    return rows


def colour(name):
    return COLOURS.get(name.removeprefix("bright"), "#" + name if len(name) == 6 else COLOURS["default"])


def draw(rows, prompt):
    rows = [[["$ " + prompt, ("green", True)]]] + rows
    width, height = COLUMNS * CHAR + 2 * PAD, len(rows) * LINE + 2 * PAD + 22
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" font-family="ui-monospace, Menlo, Consolas, monospace" '
        'font-size="14">',
        f"<title>{escape(prompt)}</title>",
        f'<rect width="{width:.0f}" height="{height}" rx="10" fill="#20242c"/>',
    ]
    for i, fill in enumerate(["#e06c75", "#e5c07b", "#98c379"]):
        out.append(f'<circle cx="{PAD + 18 * i + 4}" cy="18" r="5.5" fill="{fill}"/>')
    for y, spans in enumerate(rows):
        x = 0
        for text, (fill, bold) in spans:
            if text.strip():
                weight = ' font-weight="bold"' if bold else ""
                out.append(
                    f'<text x="{PAD + x * CHAR:.1f}" y="{PAD + 28 + y * LINE}" xml:space="preserve" '
                    f'textLength="{len(text) * CHAR:.1f}" fill="{colour(fill)}"{weight}>{escape(text)}</text>'
                )
            x += len(text)
    return "\n".join(out + ["</svg>", ""])


def main():
    out, *command = sys.argv[1:]
    rows = screen_of(command)
    if len(rows) > SHOWN:
        rows = rows[: SHOWN // 3] + [[["⋮", ("default", False)]]] + rows[-SHOWN * 2 // 3 :]
    with open(out, "w") as file:
        file.write(draw(rows, " ".join([os.path.basename(command[0]), *command[1:]])))


main()
