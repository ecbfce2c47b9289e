"""Errors as a user of the command line sees them, and the exit codes: 1 failed, 2 misuse.

An error of this project is its message, as it is written for the user. Anything else is a defect,
told in one line; TTU_DEBUG=1 shows tracebacks of both.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator

import click

from torch_tpu_unified.core.errors import NotYetAvailable, OptionError, TtuError

FAILED, MISUSE = 1, 2


@contextlib.contextmanager
def reported(as_json: bool = False, program: str = "tpu-convert") -> Iterator[None]:
    """Turn exceptions into a message on stderr and an exit code.

    Args:
        as_json: also print `{"ok": false, "error": ...}` on stdout.
        program: the command's name, for messages.
    """
    try:
        yield
    except click.ClickException as error:
        usage = isinstance(error, click.UsageError)
        hint = f"{program} --help lists the options" if usage else ""
        _leave(error, _one_line(error.format_message(), hint), error.exit_code, as_json)
    except (KeyboardInterrupt, click.Abort) as error:
        _leave(error, "interrupted; nothing was written", FAILED, as_json)
    except (OptionError, NotYetAvailable) as error:
        _leave(error, str(error), MISUSE, as_json)
    except TtuError as error:
        _leave(error, str(error), FAILED, as_json)
    except BrokenPipeError:
        # The reader went away; what Python would still write at exit has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except MemoryError as error:
        _leave(error, "out of memory; nothing was written", FAILED, as_json)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        told = f"unexpected {text} (a defect of {program}; TTU_DEBUG=1 shows where)"
        _leave(error, told, FAILED, as_json)


def _one_line(message: str, hint: str) -> str:
    text = " ".join(message.split()).rstrip(".")
    return f"{text}; {hint}" if hint else text


def _debugging() -> bool:
    from torch_tpu_unified.core import flags

    return flags.DEBUG.value > 0


def _leave(error: BaseException, message: str, code: int, as_json: bool) -> None:
    if not isinstance(error, click.ClickException) and _debugging():
        traceback.print_exception(error)
    click.echo(f"error: {message}", err=True)
    if as_json:
        told = {"type": type(error).__name__, "message": message}
        click.echo(json.dumps({"ok": False, "error": told}))
    sys.exit(code)
